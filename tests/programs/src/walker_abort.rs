//! The walker's places, built with `-C panic=abort`.

mod walk;

fn main() {
    walk::main();
}

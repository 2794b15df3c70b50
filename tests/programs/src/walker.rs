//! The walker's places, built as the profile says.

mod walk;

fn main() {
    walk::main();
}

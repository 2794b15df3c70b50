//! The walker's places, built linked as a position-dependent executable.

mod walk;

fn main() {
    walk::main();
}

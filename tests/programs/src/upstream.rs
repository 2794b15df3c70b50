//! The scenes, profiled by the `dhat` crate.

extern crate dhat_upstream as dhat;

mod scenes;

fn main() {
    scenes::main();
}

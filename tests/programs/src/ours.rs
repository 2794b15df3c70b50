//! The scenes, profiled by this crate.

extern crate dhat_ours as dhat;

mod scenes;

fn main() {
    scenes::main();
}

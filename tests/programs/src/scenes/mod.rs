//! Scenarios that a program runs by name: the same source for both profilers.
//!
//! What a scene finds out it prints to stdout, one `key=value` a line, after its profiler has ended.

use std::ffi::OsString;

mod ad_hoc;
mod counting;
mod heap;
mod kept;
mod output;
mod parser;

#[global_allocator]
static ALLOC: dhat::Alloc = dhat::Alloc;

/// Runs the scene that the first argument names with the further arguments.
pub fn main() {
    let mut args = std::env::args_os().skip(1);
    let name = args.next().expect("the name of a scene");
    let rest: Vec<OsString> = args.collect();
    match name.to_str().expect("a scene's name is UTF-8") {
        "ad_hoc" => ad_hoc::run(),
        "counting" => counting::run(&rest[0]),
        "heap" => heap::run(),
        "kept" => kept::run(&rest[0]),
        "output" => output::run(&rest),
        "parser" => parser::run(&rest),
        "pool" => parser::pool(),
        other => panic!("no scene is called {other}"),
    }
}

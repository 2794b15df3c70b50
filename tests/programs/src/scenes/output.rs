//! A program of six blocks whose profile goes where the arguments say.

use std::ffi::OsString;
use std::hint::black_box;

/// Builds a profiler as `options` say, allocates 1,000 + 200 + 40 + 8 + 6 + 2 bytes and ends.
///
/// `file=PATH` names the file, `ad_hoc` chooses that mode, `no_cwd` removes the current directory,
/// `ignored` is any further argument.
pub fn run(options: &[OsString]) {
    let mut builder = dhat::Profiler::builder();
    let mut ad_hoc = false;
    for option in options {
        match option.to_str() {
            Some("ad_hoc") => {
                ad_hoc = true;
                builder = builder.ad_hoc();
            }
            Some("no_cwd") => {
                let dir = std::env::current_dir().unwrap();
                std::fs::remove_dir_all(dir).unwrap();
            }
            Some("eprint_json") => builder = builder.eprint_json(),
            Some(option) => {
                if let Some(path) = option.strip_prefix("file=") {
                    builder = builder.file_name(path);
                }
            }
            None => {}
        }
    }
    let profiler = builder.build();
    if ad_hoc {
        for weight in 0..black_box(11) {
            dhat::ad_hoc_event(weight * 100);
        }
    }
    let blocks = [1000, 200, 40, 8, 6].map(|size| black_box(Vec::<u8>::with_capacity(size)));
    let sixth = black_box(Box::new(0u16));
    drop(profiler);
    drop(sixth);
    drop(blocks);
    println!("finished=true");
}

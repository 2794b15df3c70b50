//! A real parser on real source: syn on the sources of crates in this package's own dependency tree.

use crate::Prepared;
use std::fs;
use std::hint::black_box;
use std::path::{Path, PathBuf};

/// Parses all `.rs` files below `source_dirs` `n` times and drops the trees.
pub fn parse(n: usize, source_dirs: &[PathBuf]) -> Prepared {
    let mut files = Vec::new();
    for dir in source_dirs {
        collect(dir, &mut files);
    }
    files.sort();
    let sources: Vec<String> = files
        .iter()
        .filter_map(|file| fs::read_to_string(file).ok())
        .filter(|source| syn::parse_file(source).is_ok())
        .collect();
    assert!(!sources.is_empty(), "no source files in {source_dirs:?}");
    Box::new(move || {
        let mut n_items = 0;
        for _ in 0..n {
            for source in &sources {
                let tree = syn::parse_file(source).expect("it was parsed before");
                n_items += black_box(&tree).items.len();
            }
        }
        Box::new(n_items)
    })
}

fn collect(dir: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).expect("a directory of sources").flatten() {
        let path = entry.path();
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

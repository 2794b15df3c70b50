//! Indexes the words of this crate's own source files on several threads and answers a few queries, with every
//! allocation recorded.
//!
//! `cargo run --release --example quickstart` writes `dhat-heap.json` to the current directory.

use std::io;
use std::path::{Path, PathBuf};

#[global_allocator]
static ALLOC: dhat::Alloc = dhat::Alloc;

const N_THREADS: usize = 3;

fn main() -> io::Result<()> {
    let profiler = dhat::Profiler::new_heap();

    let files = source::list(Path::new(env!("CARGO_MANIFEST_DIR")))?;
    let index = build_index(&files)?;
    println!("{} files, {} different words", files.len(), index.n_words());
    for word in ["alloc", "frame", "unsafe"] {
        println!("{word:>8}: {}", query::describe(&index, word));
    }

    // What is still live when the Profiler is dropped counts as "at t-end", so the index goes first.
    drop((index, files));
    // The profile is saved and the summary printed here.
    drop(profiler);
    println!();
    println!(
        "The profile is {}",
        std::env::current_dir()?.join("dhat-heap.json").display()
    );
    println!(
        "Open dh_view.html in a browser (Debian and Ubuntu: /usr/libexec/valgrind/dh_view.html, from the"
    );
    println!(
        "valgrind package), press \"Load...\" and choose that file. Sort by \"At t-gmax (bytes)\" to see what"
    );
    println!("was live when the heap was largest.");
    Ok(())
}

/// Indexes the files, each thread a share of them, and merges the shares.
fn build_index(files: &[PathBuf]) -> io::Result<index::Index> {
    let n_files = files.len().div_ceil(N_THREADS).max(1);
    std::thread::scope(|scope| {
        let shares: Vec<_> = files
            .chunks(n_files)
            .map(|share| {
                scope.spawn(move || {
                    share
                        .iter()
                        .map(|file| source::read(file))
                        .collect::<io::Result<Vec<_>>>()
                })
            })
            .collect();
        let mut index = index::Index::default();
        for share in shares {
            for text in share.join().expect("a reader thread panicked")? {
                index.add(&text);
            }
        }
        Ok(index)
    })
}

/// Finding and reading the files.
mod source {
    use std::path::{Path, PathBuf};
    use std::{fs, io};

    /// A file's name and contents.
    pub struct Text {
        pub name: String,
        pub contents: String,
    }

    /// All Rust files below `dir`, sorted.
    pub fn list(dir: &Path) -> io::Result<Vec<PathBuf>> {
        let mut files = Vec::new();
        let mut dirs = vec![dir.join("src"), dir.join("examples")];
        while let Some(dir) = dirs.pop() {
            for entry in fs::read_dir(dir)? {
                let path = entry?.path();
                if path.is_dir() {
                    dirs.push(path);
                } else if path.extension().is_some_and(|extension| extension == "rs") {
                    files.push(path);
                }
            }
        }
        files.sort();
        Ok(files)
    }

    /// Reads one file.
    pub fn read(path: &Path) -> io::Result<Text> {
        Ok(Text {
            name: path.display().to_string(),
            contents: fs::read_to_string(path)?,
        })
    }
}

/// Which word occurs where.
mod index {
    use crate::source::Text;
    use std::collections::BTreeMap;

    /// One line of one file.
    #[derive(Clone)]
    pub struct Place {
        pub file: String,
        pub line: usize,
    }

    /// All words with their places.
    #[derive(Default)]
    pub struct Index {
        places: BTreeMap<String, Vec<Place>>,
    }

    impl Index {
        /// Adds the words of one file.
        pub fn add(&mut self, text: &Text) {
            for (line_idx, line) in text.contents.lines().enumerate() {
                for word in line
                    .split(|c: char| !c.is_alphanumeric())
                    .filter(|word| !word.is_empty())
                {
                    let place = Place {
                        file: text.name.clone(),
                        line: line_idx + 1,
                    };
                    self.places
                        .entry(word.to_lowercase())
                        .or_default()
                        .push(place);
                }
            }
        }

        /// How many different words there are.
        pub fn n_words(&self) -> usize {
            self.places.len()
        }

        /// Where a word occurs, in the order it was added.
        pub fn places(&self, word: &str) -> &[Place] {
            self.places.get(word).map_or(&[], Vec::as_slice)
        }
    }
}

/// Answers for people.
mod query {
    use crate::index::Index;
    use std::collections::BTreeSet;

    /// Says how often and in how many files a word occurs, and where first.
    pub fn describe(index: &Index, word: &str) -> String {
        let places = index.places(word);
        let files: BTreeSet<String> = places.iter().map(|place| place.file.clone()).collect();
        match places.first() {
            Some(first) => {
                format!(
                    "{} times in {} files, first in line {} of {}",
                    places.len(),
                    files.len(),
                    first.line,
                    first.file
                )
            }
            None => String::from("nowhere"),
        }
    }
}

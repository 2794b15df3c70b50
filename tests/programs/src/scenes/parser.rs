//! Deterministic work of real size: a parser over source files, round trips of a document, a thread pool.

use serde_json::{json, Value};
use std::ffi::OsString;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::sync::{mpsc, Arc, Mutex};
use syn::visit::Visit;

/// Counts what the visitor meets, so that the trees are walked, too.
#[derive(Default)]
struct Census {
    exprs: usize,
    names: Vec<String>,
}

impl<'ast> Visit<'ast> for Census {
    fn visit_expr(&mut self, expr: &'ast syn::Expr) {
        self.exprs += 1;
        syn::visit::visit_expr(self, expr);
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.names.push(item.sig.ident.to_string());
        syn::visit::visit_item_fn(self, item);
    }
}

fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
    let mut entries: Vec<PathBuf> = std::fs::read_dir(dir)
        .expect("a directory of sources")
        .map(|entry| entry.expect("a readable entry").path())
        .collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

fn document(depth: usize) -> Value {
    let children: Vec<Value> = (0..depth).map(|_| document(depth - 1)).collect();
    json!({
        "depth": depth,
        "name": "node ".repeat(depth + 1),
        "children": children,
        "weights": (0..depth).map(|n| n as f64 / 8.0).collect::<Vec<_>>(),
    })
}

fn round_trips(rounds: usize) -> usize {
    let document = document(5);
    let mut bytes = 0;
    for _ in 0..rounds {
        let text = serde_json::to_string(&document).expect("a document is printable");
        let back: Value = serde_json::from_str(&text).expect("what was printed is readable");
        assert!(back == document);
        bytes += text.len();
    }
    bytes
}

fn number(arg: &OsString) -> usize {
    arg.to_str().and_then(|n| n.parse().ok()).expect("a number")
}

/// Parses `.rs` files under the first argument, a directory, of at most the third one's bytes in all;
/// the second is the limit of frames.
pub fn run(args: &[OsString]) {
    let (max_frames, mut budget) = (number(&args[1]), number(&args[2]));
    let mut paths = Vec::new();
    sources(Path::new(&args[0]), &mut paths);
    let mut texts: Vec<String> = Vec::new();
    for path in paths {
        let text = std::fs::read_to_string(path).expect("a readable source");
        if text.len() <= budget {
            budget -= text.len();
            texts.push(text);
        }
    }
    let profiler = dhat::Profiler::builder()
        .trim_backtraces(Some(max_frames))
        .build();
    let mut kept = Vec::new();
    let mut exprs = 0;
    for (idx, text) in texts.iter().enumerate() {
        let file = syn::parse_file(text).expect("a source that compiles");
        let mut census = Census::default();
        census.visit_file(&file);
        exprs += census.exprs;
        if idx % 3 == 0 {
            kept.push((file, census.names));
        }
    }
    let bytes = round_trips(3);
    let stats = dhat::HeapStats::get();
    drop(profiler);
    println!(
        "stats={stats:?}\nfiles={}\nexprs={exprs}\nbytes={bytes}",
        texts.len()
    );
    black_box(kept);
}

/// Has four threads of a pool serialize documents and drop each other's results.
pub fn pool() {
    // What threads and channels allocate depends on who comes first; only the jobs run profiled.
    let (jobs, queue) = mpsc::channel::<usize>();
    let queue = Arc::new(Mutex::new(queue));
    let start = Arc::new(std::sync::Barrier::new(5));
    let end = Arc::new(std::sync::Barrier::new(5));
    (0..16).for_each(|_| jobs.send(2).unwrap());
    drop(jobs);
    let workers: Vec<_> = (0..4)
        .map(|_| {
            let (queue, start, end) = (queue.clone(), start.clone(), end.clone());
            std::thread::spawn(move || {
                let mut bytes = 0;
                start.wait();
                loop {
                    let job = queue.lock().unwrap().recv();
                    match job {
                        Ok(rounds) => bytes += round_trips(rounds),
                        Err(_) => break,
                    }
                }
                end.wait();
                bytes
            })
        })
        .collect();
    let profiler = dhat::Profiler::new_heap();
    start.wait();
    end.wait();
    let stats = dhat::HeapStats::get();
    drop(profiler);
    let bytes: usize = workers
        .into_iter()
        .map(|worker| worker.join().unwrap())
        .sum();
    println!("stats={stats:?}\nbytes={bytes}");
}

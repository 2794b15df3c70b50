//! The workloads and their sizes.

use crate::variant::Variant;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// One workload: `n` is what it repeats, which is not its number of blocks.
#[derive(Clone, Copy)]
pub struct Workload {
    pub name: &'static str,
    pub n: usize,
}

const SIZES: [(&str, usize); 15] = [
    ("churn", 2_000_000),
    ("churn-2", 2_000_000),
    ("churn-4", 2_000_000),
    ("churn-8", 2_000_000),
    ("paths", 1_000_000),
    ("parser", 1),
    ("json", 220),
    ("growth", 2_000_000),
    ("handoff", 1_000_000),
    ("realloc", 200_000),
    ("large", 200_000),
    ("deep-30", 100_000),
    ("deep-100", 50_000),
    ("deep-300", 20_000),
    ("idle", 20_000_000),
];

/// All workloads.
pub fn all(quick: bool) -> Vec<Workload> {
    SIZES
        .into_iter()
        .map(|(name, n)| Workload {
            name,
            // The parser's work is shortened by its sources.
            n: if quick { (n / 10).max(1) } else { n },
        })
        .collect()
}

/// A tenth of the work, for the profilers that slow a program down a hundredfold.
pub fn reduced(name: &str) -> Option<Workload> {
    all(true).into_iter().find(|workload| workload.name == name)
}

impl Workload {
    /// Why this workload says nothing about that profiler.
    pub fn unfit(&self, variant: &Variant) -> Option<&'static str> {
        (self.name.starts_with("deep-") && ["mod-alloc", "heapscope"].contains(&variant.name))
            .then_some("it cannot keep stacks this deep")
    }
}

/// The directories whose sources the parser reads: of crates in this package's own dependency tree.
pub fn parser_sources(package: &Path, quick: bool) -> Vec<PathBuf> {
    let wanted: &[&str] = if quick {
        &["proc-macro2"]
    } else {
        &["proc-macro2", "serde_core", "serde_json", "syn"]
    };
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--manifest-path"])
        .arg(package.join("Cargo.toml"))
        .output()
        .expect("cargo runs");
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("cargo prints JSON");
    let packages = metadata["packages"].as_array().into_iter().flatten();
    packages
        .filter(|package| {
            package["name"]
                .as_str()
                .is_some_and(|name| wanted.contains(&name))
        })
        .filter_map(|package| {
            let manifest = Path::new(package["manifest_path"].as_str()?);
            Some(manifest.parent()?.join("src"))
        })
        .collect()
}

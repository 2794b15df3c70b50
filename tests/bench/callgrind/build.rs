//! Writes a few thousand functions that allocate: call sites that no rule cache has seen.

use std::fmt::Write;
use std::path::Path;

const N_SITES: usize = 4096;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let mut text = String::new();
    for site in 0..N_SITES {
        // The number keeps the compiler from making one function of all.
        let _ = writeln!(
            text,
            "#[inline(never)] fn site_{site}() {{ pair(32); black_box({site}_usize); }}"
        );
    }
    let names: Vec<String> = (0..N_SITES).map(|site| format!("site_{site}")).collect();
    let _ = writeln!(
        text,
        "static SITES: [fn(); {N_SITES}] = [{}];",
        names.join(", ")
    );
    let directory = std::env::var("OUT_DIR").expect("cargo sets OUT_DIR");
    std::fs::write(Path::new(&directory).join("sites.rs"), text).expect("OUT_DIR is writable");
}

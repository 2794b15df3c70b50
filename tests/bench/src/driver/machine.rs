//! Where and with what the figures were measured.

use crate::Places;
use crate::options::Options;
use serde_json::{Value, json};
use std::process::Command;

/// Machine, date, versions and the command line.
pub fn describe(places: &Places, options: &Options) -> Value {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let command = "cargo run --release --manifest-path tests/bench/Cargo.toml";
    let command = if args.is_empty() {
        command.to_owned()
    } else {
        format!("{command} -- {}", args.join(" "))
    };
    let package = places.package.to_string_lossy();
    json!({
        "cpu": cpu(),
        "cores": std::thread::available_parallelism().map_or(0, |n| n.get()),
        "system": first_line("uname", &["-srm"]),
        "date": first_line("date", &["-u", "+%F"]),
        "load_at_start": load(),
        "commit": first_line("git", &["-C", &package, "describe", "--always", "--dirty"]),
        "rustc": first_line("rustc", &["-V"]),
        "rustc_nightly": first_line("rustup", &["run", "nightly", "rustc", "-V"]),
        "peers": "dhat 0.3.3, heapscope 0.3.0, mod-alloc 1.0.1",
        "command": command,
        "rounds": options.n_rounds,
        "quick": options.quick,
    })
}

fn cpu() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        let line = text.lines().find(|line| line.starts_with(name))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let name = field("model name").unwrap_or_else(|| "unknown CPU".to_owned());
    match (field("cpu family"), field("model\t"), field("stepping")) {
        (Some(family), Some(model), Some(stepping)) => {
            format!("{name} (family {family}, model {model}, stepping {stepping})")
        }
        _ => name,
    }
}

fn load() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/loadavg").ok()?;
    text.split_whitespace().next()?.parse().ok()
}

fn first_line(program: &str, args: &[&str]) -> Option<String> {
    let output = Command::new(program).args(args).output().ok()?;
    if !output.status.success() {
        return None;
    }
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().next().map(str::to_owned)
}

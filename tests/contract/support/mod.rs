//! Builds the programs of `tests/programs` and runs their scenes, each in a directory of its own.

mod profile;

pub(crate) use profile::{Figures, Frame, Point, Profile};

use std::ffi::OsStr;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// The profiler that a program is built with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Tool {
    Ours,
    Upstream,
}

/// How a program is built.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Build {
    Debug,
    Release,
}

impl Build {
    pub(crate) const ALL: [Build; 2] = [Build::Debug, Build::Release];
}

/// Declares two tests of one fact, a child module with one for each tool.
macro_rules! on_both {
    ($($fact:ident: $check:expr;)+) => {$(
        mod $fact {
            use super::*;

            #[test]
            fn ours() {
                let check: fn(Tool) = $check;
                check(Tool::Ours);
            }

            #[test]
            fn upstream() {
                let check: fn(Tool) = $check;
                check(Tool::Upstream);
            }
        }
    )+};
}
pub(crate) use on_both;

/// Keeps tests that profile this very process apart.
pub(crate) fn in_process() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The manifest of the programs.
fn programs_manifest() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/Cargo.toml")
}

fn target_dir() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("programs")
}

/// A cargo command on the programs, free of what the outer build has set: they are stock builds.
pub(crate) fn cargo(subcommand: &str) -> Command {
    let mut cargo = Command::new(env!("CARGO"));
    cargo
        .arg(subcommand)
        .arg("--manifest-path")
        .arg(programs_manifest());
    for variable in [
        "RUSTFLAGS",
        "CARGO_ENCODED_RUSTFLAGS",
        "CARGO_BUILD_TARGET",
        "CARGO_TARGET_DIR",
    ] {
        cargo.env_remove(variable);
    }
    cargo
}

/// Builds with cargo's further arguments and gives the directory of `profile`.
pub(crate) fn build(profile: &str, args: &[&str], rustc_args: &[&str]) -> PathBuf {
    let mut cargo = cargo("rustc");
    cargo.args(["--quiet", "--profile", profile]).args(args);
    cargo.arg("--target-dir").arg(target_dir());
    if !rustc_args.is_empty() {
        cargo.arg("--").args(rustc_args);
    }
    let output = cargo.output().expect("cargo starts");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let dir = if profile == "dev" { "debug" } else { profile };
    target_dir().join(dir)
}

fn built_once(slot: &OnceLock<PathBuf>, profile: &str, bin: &str) -> PathBuf {
    slot.get_or_init(|| build(profile, &["--features", "oracle", "--bin", bin], &[]).join(bin))
        .clone()
}

/// The program that runs scenes.
pub(crate) fn program(tool: Tool, build: Build) -> PathBuf {
    static SLOTS: [OnceLock<PathBuf>; 4] = [const { OnceLock::new() }; 4];
    let (profile, offset) = match build {
        Build::Debug => ("dev", 0),
        Build::Release => ("release", 2),
    };
    match tool {
        Tool::Ours => built_once(&SLOTS[offset], profile, "ours"),
        Tool::Upstream => built_once(&SLOTS[offset + 1], profile, "upstream"),
    }
}

/// An empty directory that no other test uses.
pub(crate) fn fresh_dir() -> PathBuf {
    static N_DIRS: AtomicUsize = AtomicUsize::new(0);
    let name = format!(
        "run-{}-{}",
        std::process::id(),
        N_DIRS.fetch_add(1, Ordering::Relaxed)
    );
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&dir).expect("the temporary directory is writable");
    dir
}

/// Runs a scene with arguments; it must succeed.
pub(crate) fn scene<A: AsRef<OsStr>>(tool: Tool, build: Build, name: &str, args: &[A]) -> Outcome {
    let mut command = Command::new(program(tool, build));
    command.arg(name).args(args);
    run(command).succeeded()
}

/// Runs a command in a fresh directory.
pub(crate) fn run(command: Command) -> Outcome {
    run_in(fresh_dir(), command)
}

/// Runs a command in a directory.
pub(crate) fn run_in(dir: PathBuf, mut command: Command) -> Outcome {
    command
        .current_dir(&dir)
        .stdin(Stdio::null())
        .env_remove("RUST_BACKTRACE");
    let output = command.output().expect("the program starts");
    Outcome {
        status: output.status,
        stdout: String::from_utf8(output.stdout).expect("stdout is UTF-8"),
        stderr: String::from_utf8(output.stderr).expect("stderr is UTF-8"),
        dir,
    }
}

/// What is left of a program that ran; its directory goes with it.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) dir: PathBuf,
}

impl Outcome {
    pub(crate) fn succeeded(self) -> Outcome {
        assert_eq!(
            (self.status.code(), self.status.signal()),
            (Some(0), None),
            "{}",
            self.stderr
        );
        self
    }

    /// What the program printed as `key=value`.
    pub(crate) fn fact(&self, key: &str) -> &str {
        self.stdout
            .lines()
            .filter_map(|line| line.split_once('='))
            .find_map(|(name, value)| (name == key).then_some(value))
            .unwrap_or_else(|| panic!("nothing said of {key} in:\n{}{}", self.stdout, self.stderr))
    }

    pub(crate) fn number(&self, key: &str) -> u64 {
        self.fact(key).parse().expect("a number")
    }

    pub(crate) fn text(&self, file: &str) -> String {
        std::fs::read_to_string(self.dir.join(file))
            .unwrap_or_else(|e| panic!("{file}: {e}; {}", self.stderr))
    }

    pub(crate) fn profile(&self, file: &str) -> Profile {
        Profile::parse(&self.text(file))
    }

    /// The profile in the default file.
    pub(crate) fn heap(&self) -> Profile {
        self.profile("dhat-heap.json")
    }

    /// The names of the files in the program's directory, sorted.
    pub(crate) fn files(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.dir).expect("the directory is still there");
        let mut names: Vec<String> = entries
            .map(|entry| {
                entry
                    .expect("a readable entry")
                    .file_name()
                    .into_string()
                    .expect("UTF-8")
            })
            .collect();
        names.sort();
        names
    }
}

impl Drop for Outcome {
    fn drop(&mut self) {
        // What cannot be removed stays under the target directory.
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// How `HeapStats` with these figures prints.
pub(crate) fn heap_stats(
    [
        total_blocks,
        total_bytes,
        curr_blocks,
        curr_bytes,
        max_blocks,
        max_bytes,
    ]: [u64; 6],
) -> String {
    format!(
        "HeapStats {{ total_blocks: {total_blocks}, total_bytes: {total_bytes}, curr_blocks: {curr_blocks}, \
         curr_bytes: {curr_bytes}, max_blocks: {max_blocks}, max_bytes: {max_bytes} }}"
    )
}

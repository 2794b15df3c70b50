//! The builds of the workloads: one a profiler, and an unprofiled twin for each kind of build.

use crate::Places;
use std::path::PathBuf;
use std::process::Command;

/// Compiler and flags that profilers share with their unprofiled twin.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Build {
    /// What `cargo build --release` makes.
    Stock,
    FramePointers,
    NightlyFramePointers,
}

/// One build of the workloads.
#[derive(Clone, Copy)]
pub struct Variant {
    pub name: &'static str,
    feature: &'static str,
    build: Build,
}

/// All variants, twins first.
pub fn all() -> [Variant; 8] {
    let variant = |name, feature, build| Variant {
        name,
        feature,
        build,
    };
    [
        variant("count", "count", Build::Stock),
        variant("none", "", Build::Stock),
        variant("none-fp", "", Build::FramePointers),
        variant("none-fp-nightly", "", Build::NightlyFramePointers),
        variant("milliner", "milliner", Build::Stock),
        variant("upstream", "upstream", Build::Stock),
        variant("mod-alloc", "mod-alloc", Build::FramePointers),
        variant("heapscope", "heapscope", Build::NightlyFramePointers),
    ]
}

impl Variant {
    /// The unprofiled variant that is built in the same way.
    pub fn twin(&self) -> &'static str {
        match self.build {
            Build::Stock => "none",
            Build::FramePointers => "none-fp",
            Build::NightlyFramePointers => "none-fp-nightly",
        }
    }

    pub fn is_profiler(&self) -> bool {
        !self.feature.is_empty() && self.feature != "count"
    }

    pub fn program(&self, places: &Places) -> PathBuf {
        places.output.join("bin").join(self.name)
    }

    /// Builds the variant and puts it where [`Variant::program`] says.
    ///
    /// # Errors
    /// Why it cannot be built.
    pub fn build(&self, places: &Places) -> Result<(), String> {
        let mut command = match self.build {
            Build::Stock | Build::FramePointers => Command::new(env!("CARGO")),
            Build::NightlyFramePointers => {
                let mut command = Command::new("rustup");
                command.args(["run", "nightly", "cargo"]);
                command
            }
        };
        if self.build == Build::NightlyFramePointers {
            // They name the toolchain that runs this program.
            for name in ["RUSTUP_TOOLCHAIN", "CARGO", "RUSTC"] {
                command.env_remove(name);
            }
        }
        let (directory, flags) = match self.build {
            Build::Stock => ("stock", ""),
            Build::FramePointers => ("fp", "-C force-frame-pointers=yes"),
            Build::NightlyFramePointers => ("fp-nightly", "-C force-frame-pointers=yes"),
        };
        // The profilers share a directory with their twin: only the program and the profiler itself are built anew.
        let target_dir = places.output.join("build").join(directory);
        command
            .args(["build", "--release", "--quiet", "--bin", "workload"])
            .args(["--features", self.feature])
            .arg("--manifest-path")
            .arg(places.package.join("Cargo.toml"))
            .arg("--target-dir")
            .arg(&target_dir)
            .env("RUSTFLAGS", flags);
        let output = command
            .output()
            .map_err(|error| format!("no compiler: {error}"))?;
        if !output.status.success() {
            let text = String::from_utf8_lossy(&output.stderr);
            let error = text
                .lines()
                .find(|line| line.starts_with("error"))
                .unwrap_or("no reason given");
            return Err(format!("it does not build: {error}"));
        }
        let program = self.program(places);
        let copied = std::fs::create_dir_all(places.output.join("bin"))
            .and_then(|()| std::fs::copy(target_dir.join("release/workload"), program));
        copied.map_err(|error| format!("the program cannot be copied: {error}"))?;
        Ok(())
    }
}

//! Where the profile goes, what it looks like there, and what is said about it on stderr.

use crate::support::{Build, Outcome, Tool, fresh_dir, on_both, program, run, run_in, scene};
use std::ffi::OsStr;
use std::fs;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};

const SUMMARY: [&str; 3] = [
    "dhat: Total:     1,256 bytes in 6 blocks",
    "dhat: At t-gmax: 1,256 bytes in 6 blocks",
    "dhat: At t-end:  1,256 bytes in 6 blocks",
];

on_both! {
    the_summary_comes_first_on_stderr: |tool| {
        let outcome = output(tool, &[]);
        assert_eq!(said(&outcome), with_summary(saved("dhat-heap.json")));
        assert!(outcome.stderr.lines().all(|line| line.starts_with("dhat: ")));
        assert_eq!(outcome.files(), ["dhat-heap.json"]);
        let outcome = output(tool, &["ad_hoc"]);
        let lines: Vec<&str> = outcome.stderr.lines().take(2).collect();
        assert_eq!(lines, ["dhat: Total:     5,500 units in 11 events", &saved("dhat-ad-hoc.json")]);
        assert_eq!(outcome.files(), ["dhat-ad-hoc.json"]);
    };
    a_named_file_is_written_and_named: |tool| {
        let outcome = output(tool, &["file=sub-ö.json"]);
        assert_eq!(said(&outcome), with_summary(saved("sub-ö.json")));
        assert_eq!(outcome.files(), ["sub-ö.json"]);
        assert_eq!(outcome.profile("sub-ö.json").sums().tb, 1256);
    };
    fields_have_their_order: fields_in_order;
    the_file_has_one_element_a_line: |tool| {
        let outcome = output(tool, &[]);
        let text = outcome.text("dhat-heap.json");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[..4], ["{", "\"dhatFileVersion\": 2,", "\"mode\": \"rust-heap\",", "\"verb\": \"Allocated\","]);
        assert!(lines.contains(&"\"ftbl\": [") && lines.contains(&"\"[root]\","));
        assert!(lines.iter().all(|line| !line.starts_with(' ')), "no line is indented");
    };
    an_older_profile_is_replaced: |tool| {
        let dir = fresh_dir();
        fs::write(dir.join("dhat-heap.json"), "x".repeat(1 << 20)).unwrap();
        let outcome = output_in(&dir, tool, &[]);
        assert_eq!(outcome.heap().sums().tb, 1256);
        assert_eq!(outcome.files(), ["dhat-heap.json"]);
    };
    a_link_is_followed: |tool| {
        let dir = fresh_dir();
        fs::create_dir(dir.join("far")).unwrap();
        fs::write(dir.join("far/old.json"), "old").unwrap();
        symlink("far/old.json", dir.join("to-a-file")).unwrap();
        symlink("far/new.json", dir.join("to-nothing")).unwrap();
        for (link, target) in [("to-a-file", "far/old.json"), ("to-nothing", "far/new.json")] {
            let outcome = output_in(&dir, tool, &[&format!("file={link}")]);
            assert_eq!(said(&outcome), with_summary(saved(link)));
            assert_eq!(outcome.profile(target).sums().tb, 1256);
            assert!(fs::symlink_metadata(dir.join(link)).unwrap().is_symlink());
            std::mem::forget(outcome);
        }
        assert_eq!(fs::read_dir(dir.join("far")).unwrap().count(), 2);
        fs::remove_dir_all(dir).unwrap();
    };
    the_null_device_stays_one: |tool| {
        let outcome = output(tool, &["file=/dev/null"]);
        assert_eq!(said(&outcome), with_summary(saved("/dev/null")));
        assert!(fs::metadata("/dev/null").unwrap().file_type().is_char_device());
        assert_eq!(outcome.files(), [""; 0]);
    };
    a_fifo_gets_the_whole_profile: |tool| {
        let dir = fresh_dir();
        let fifo = dir.join("fifo");
        assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
        let reader = std::thread::spawn({
            let fifo = fifo.clone();
            move || fs::read_to_string(fifo).unwrap()
        });
        let outcome = output_in(&dir, tool, &["file=fifo"]);
        let text = reader.join().unwrap();
        assert_eq!(crate::support::Profile::parse(&text).sums().tb, 1256);
        assert!(fs::metadata(&fifo).unwrap().file_type().is_fifo());
        assert_eq!(outcome.files(), ["fifo"]);
    };
    a_path_that_cannot_be_written_is_an_error_line: |tool| {
        let dir = fresh_dir();
        fs::write(dir.join("file"), "kept").unwrap();
        fs::create_dir(dir.join("dir")).unwrap();
        let impossible = [
            ("no/such/dir.json", "No such file or directory (os error 2)"),
            ("file/below.json", "Not a directory (os error 20)"),
            ("dir", "Is a directory (os error 21)"),
        ];
        for (path, error) in impossible {
            let outcome = output_in(&dir, tool, &[&format!("file={path}")]);
            let line = format!("dhat: error: Writing to {path} failed: {error}");
            assert_eq!(said(&outcome), with_summary(line));
            assert_eq!((outcome.files(), outcome.text("file")), (vec!["dir".into(), "file".into()], "kept".into()));
            std::mem::forget(outcome);
        }
        fs::remove_dir_all(dir).unwrap();
    };
    a_removed_current_directory_is_an_error_line: |tool| {
        let mut command = Command::new(program(tool, Build::Release));
        command.args(["output", "no_cwd"]);
        let outcome = run(command).succeeded();
        let line = "dhat: error: Writing to dhat-heap.json failed: No such file or directory (os error 2)";
        assert_eq!(said(&outcome), with_summary(line.to_owned()));
        assert_eq!(outcome.fact("finished"), "true");
    };
    a_stderr_closed_by_the_shell_is_no_panic: |tool| {
        let outcome = through_shell(tool, "2>&-");
        assert_eq!((outcome.fact("finished"), outcome.heap().sums().tb), ("true", 1256));
    };
}

fn fields_in_order(tool: Tool) {
    const HEAD: [&str; 5] = ["dhatFileVersion", "mode", "verb", "bklt", "bkacc"];
    let names = |outcome: &Outcome, file: &str| {
        let profile = outcome.profile(file);
        profile
            .fields
            .iter()
            .map(|(key, _)| key.clone())
            .collect::<Vec<_>>()
    };
    let heap = output(tool, &["some", "arguments"]);
    let rest = ["tu", "Mtu", "tuth", "cmd", "pid", "tg", "te", "pps", "ftbl"];
    assert_eq!(
        without_modules(names(&heap, "dhat-heap.json"), tool),
        [&HEAD[..], &rest[..]].concat()
    );
    let profile = heap.heap();
    assert_eq!(*profile.field("dhatFileVersion"), 2);
    assert_eq!(*profile.field("mode"), "rust-heap");
    assert_eq!(*profile.field("verb"), "Allocated");
    assert_eq!(
        (
            profile.field("bklt").as_bool(),
            profile.field("bkacc").as_bool()
        ),
        (Some(true), Some(false))
    );
    assert_eq!(
        (profile.field("tu").as_str(), profile.field("Mtu").as_str()),
        (Some("µs"), Some("s"))
    );
    assert_eq!(*profile.field("tuth"), 10);
    assert!(
        profile
            .field("cmd")
            .as_str()
            .unwrap()
            .ends_with(" output some arguments")
    );
    assert!(profile.field("pid").as_u64().unwrap() > 1);
    assert!(profile.field("te").as_u64() >= profile.field("tg").as_u64());
    assert_eq!(profile.ftbl[0], "[root]");
    assert!(!profile.points.is_empty());
    for point in &profile.points {
        assert_eq!(
            point.keys,
            [
                "tb", "tbk", "tl", "mb", "mbk", "gb", "gbk", "eb", "ebk", "fs"
            ]
        );
    }

    let ad_hoc = output(tool, &["ad_hoc"]);
    let rest = [
        "bu", "bsu", "bksu", "tu", "Mtu", "cmd", "pid", "te", "pps", "ftbl",
    ];
    assert_eq!(
        without_modules(names(&ad_hoc, "dhat-ad-hoc.json"), tool),
        [&HEAD[..], &rest[..]].concat()
    );
    let profile = ad_hoc.profile("dhat-ad-hoc.json");
    assert_eq!(*profile.field("mode"), "rust-ad-hoc");
    assert_eq!(profile.field("bklt").as_bool(), Some(false));
    let units = ["bu", "bsu", "bksu"].map(|key| profile.field(key).as_str().unwrap());
    assert_eq!(units, ["unit", "units", "events"]);
}

/// Takes our own field, the last one, off the names.
fn without_modules(mut names: Vec<String>, tool: Tool) -> Vec<String> {
    if tool == Tool::Ours {
        assert_eq!(names.pop().as_deref(), Some("modules"));
    }
    names
}

#[test]
fn no_time_is_rounded_to_zero() {
    for build in Build::ALL {
        let outcome = scene(Tool::Ours, build, "output", &["file=profile.json"]);
        let profile = outcome.profile("profile.json");
        assert!(profile.field("tg").as_u64().unwrap() >= 1);
        assert!(profile.points.iter().all(|point| point.tl >= 1));
    }
}

#[test]
fn a_full_device_is_an_error_line_and_stays_a_device() {
    let device = |path: &Path| {
        let metadata = fs::metadata(path).unwrap();
        (metadata.file_type().is_char_device(), metadata.rdev())
    };
    let full = Path::new("/dev/full");
    let before = device(full);
    let outcome = output(Tool::Ours, &["file=/dev/full"]);
    let line = "dhat: error: Writing to /dev/full failed: No space left on device (os error 28)";
    assert_eq!(said(&outcome), with_summary(line.to_owned()));
    assert_eq!(device(full), before);
    assert!(before.0);
}

#[test]
fn arguments_need_not_be_utf8() {
    let mut command = Command::new(program(Tool::Ours, Build::Release));
    command
        .arg("output")
        .arg(OsStr::from_bytes(b"caf\xe9"))
        .arg("after");
    let outcome = run(command).succeeded();
    let profile = outcome.heap();
    assert!(
        profile
            .field("cmd")
            .as_str()
            .unwrap()
            .ends_with(" output caf\u{fffd} after")
    );
}

#[test]
fn a_stderr_that_takes_nothing_is_no_panic() {
    let outcome = through_shell(Tool::Ours, "2>/dev/full");
    assert_eq!(
        (outcome.fact("finished"), outcome.heap().sums().tb),
        ("true", 1256)
    );
    // Nobody reads this pipe.
    let dir = fresh_dir();
    let mut command = Command::new(program(Tool::Ours, Build::Release));
    let mut child = command
        .arg("output")
        .current_dir(&dir)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stderr.take());
    let mut stdout = String::new();
    child
        .stdout
        .take()
        .unwrap()
        .read_to_string(&mut stdout)
        .unwrap();
    assert!(child.wait().unwrap().success());
    assert!(stdout.contains("finished=true"));
    assert!(dir.join("dhat-heap.json").exists());
    fs::remove_dir_all(dir).unwrap();
}

#[test]
fn a_file_in_a_directory_that_takes_no_new_files_is_still_written() {
    let dir = fresh_dir();
    fs::create_dir(dir.join("closed")).unwrap();
    fs::write(dir.join("closed/profile.json"), "old").unwrap();
    fs::set_permissions(
        dir.join("closed/profile.json"),
        fs::Permissions::from_mode(0o666),
    )
    .unwrap();
    fs::set_permissions(dir.join("closed"), fs::Permissions::from_mode(0o555)).unwrap();
    let outcome = output_in(&dir, Tool::Ours, &["file=closed/profile.json"]);
    assert_eq!(said(&outcome), with_summary(saved("closed/profile.json")));
    assert_eq!(outcome.profile("closed/profile.json").sums().tb, 1256);
    assert_eq!(
        fs::metadata(dir.join("closed/profile.json"))
            .unwrap()
            .mode()
            & 0o777,
        0o666
    );
    fs::set_permissions(dir.join("closed"), fs::Permissions::from_mode(0o755)).unwrap();
}

fn output(tool: Tool, options: &[&str]) -> Outcome {
    output_in(&fresh_dir(), tool, options)
}

fn output_in(dir: &Path, tool: Tool, options: &[&str]) -> Outcome {
    let mut command = Command::new(program(tool, Build::Release));
    command.arg("output").args(options);
    run_in(dir.to_owned(), command).succeeded()
}

fn through_shell(tool: Tool, redirection: &str) -> Outcome {
    let mut command = Command::new("sh");
    command
        .arg("-c")
        .arg(format!("exec \"$0\" output {redirection}"))
        .arg(program(tool, Build::Release));
    run(command).succeeded()
}

/// The first four lines on stderr.
fn said(outcome: &Outcome) -> Vec<String> {
    outcome.stderr.lines().take(4).map(str::to_owned).collect()
}

fn with_summary(last: String) -> Vec<String> {
    SUMMARY
        .iter()
        .map(|line| line.to_string())
        .chain([last])
        .collect()
}

fn saved(file: &str) -> String {
    format!("dhat: The data has been saved to {file}, and is viewable with dhat/dh_view.html")
}

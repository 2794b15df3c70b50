//! A heap profiler for Rust programs, and a drop-in replacement for the `dhat` crate.

#![allow(dead_code, unused_imports, missing_docs)]

mod modules;
mod recorder;
mod report;
mod symbolize;
mod sys;
mod unwind;

//! What programs that use `dhat` rely on, each fact checked here and, as far as it is one there, in the `dhat` crate itself.

mod support;

mod api;
mod behavior;
mod counting;
mod macros;
mod output;
mod panics;
mod parity;
mod situations;

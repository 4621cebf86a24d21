//! Algorithms whose ranks average after some steps: against their rules, step by step, and the bytes of their headers.
//! Each file is a module here.

mod diloco;
mod easgd;
mod local_sgd;
mod outer_codecs;
mod outer_steps;
mod post_local_sgd;
mod slowmo;

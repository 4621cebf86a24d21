//! docs/write-your-own-transport.md shows code that is compiled and tested here.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "../../pages/blocks.rs"]
mod pages;

const PAGE: &str = include_str!("../../../docs/write-your-own-transport.md");
const FILES: [&str; 3] =
    [include_str!("../src/lib.rs"), include_str!("../src/endpoint.rs"), include_str!("matrix.rs")];

#[test]
fn every_block_of_rust_is_a_piece_of_this_crate() {
    pages::check(PAGE, &FILES, 7);
}

//! docs/write-your-own-codec.md shows code that is compiled and tested, here and in `hexagram-logical`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "../../pages/blocks.rs"]
mod pages;

use pages::lines;

const PAGE: &str = include_str!("../../../docs/write-your-own-codec.md");
const FILES: [&str; 3] = [
    include_str!("../src/lib.rs"),
    include_str!("ternary.rs"),
    include_str!("../../../logical/src/codec/example.rs"),
];

#[test]
fn every_block_of_rust_is_a_piece_of_a_tested_file() {
    pages::check(PAGE, &FILES, 5);
}

#[test]
fn the_codec_has_60_lines_of_code_at_most() {
    let code = lines(FILES[0]).into_iter().filter(|line| !line.is_empty() && !line.starts_with("//"));
    let count = code.count();
    assert!(count <= 60, "{count}");
}

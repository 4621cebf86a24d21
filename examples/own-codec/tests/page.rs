//! docs/write-your-own-codec.md shows code that is compiled and tested here.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

const PAGE: &str = include_str!("../../../docs/write-your-own-codec.md");
const FILES: [&str; 2] = [include_str!("../src/lib.rs"), include_str!("ternary.rs")];

/// Returns the lines without their indentation, which differs on the page.
fn lines(text: &str) -> Vec<&str> {
    text.lines().map(str::trim).filter(|line| !line.is_empty()).collect()
}

#[test]
fn every_block_of_rust_is_a_piece_of_this_crate() {
    let blocks = PAGE.split("\n```rust\n").skip(1).map(|block| block.split_once("\n```\n").unwrap().0);
    let mut count = 0;
    for block in blocks {
        let block = lines(block);
        let has = |file: &&str| lines(file).windows(block.len()).any(|part| part == block);
        assert!(FILES.iter().any(has), "the page and the crate differ in:\n{}", block.join("\n"));
        count += 1;
    }
    assert!(count >= 4, "{count}");
}

#[test]
fn the_codec_has_60_lines_of_code_at_most() {
    let code = lines(FILES[0]).into_iter().filter(|line| !line.is_empty() && !line.starts_with("//"));
    let count = code.count();
    assert!(count <= 60, "{count}");
}

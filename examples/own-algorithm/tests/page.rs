//! docs/write-your-own-algorithm.md shows code that is compiled and tested here, and the plugin is as short as the
//! page claims.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "../../pages/blocks.rs"]
mod pages;

use pages::{blocks, has, lines};

const PAGE: &str = include_str!("../../../docs/write-your-own-algorithm.md");
const PLUGIN: &str = include_str!("../src/lib.rs");
const FILES: [&str; 3] = [PLUGIN, include_str!("../src/main.rs"), include_str!("adaptive.rs")];

#[test]
fn every_block_of_rust_is_a_piece_of_this_crate() {
    pages::check(PAGE, &FILES, 6);
}

#[test]
fn the_page_has_the_whole_plugin_with_its_rule() {
    let (header, code): (Vec<&str>, Vec<&str>) =
        lines(PLUGIN).into_iter().partition(|line| line.starts_with("//!"));
    let whole = |block: &&str| lines(block) == code;
    assert_eq!(blocks(PAGE, "rust").iter().filter(|block| whole(block)).count(), 1);
    let header: Vec<&str> = header.iter().map(|line| line.trim_start_matches("//!").trim()).collect();
    assert!(has(&header.join("\n"), blocks(PAGE, "text")[0]), "the rule differs");
}

#[test]
fn the_program_has_ten_lines_at_most() {
    let code = lines(include_str!("../src/main.rs")).into_iter().filter(|line| !line.starts_with("//"));
    let count = code.count();
    assert!(count <= 10, "{count}");
}

#[test]
fn the_plugin_has_fewer_than_50_lines_of_code() {
    let code = lines(PLUGIN).into_iter().filter(|line| !line.starts_with("//"));
    let count = code.count();
    assert!(count < 50, "{count}");
}

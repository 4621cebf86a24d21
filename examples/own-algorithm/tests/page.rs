//! docs/write-your-own-algorithm.md shows code that is compiled and tested here, and the plugin is as short as the
//! page claims.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

const PAGE: &str = include_str!("../../../docs/write-your-own-algorithm.md");
const PLUGIN: &str = include_str!("../src/lib.rs");
const FILES: [&str; 3] = [PLUGIN, include_str!("../src/main.rs"), include_str!("adaptive.rs")];

/// Lines without their indentation, which differs on the page.
fn lines(text: &str) -> Vec<&str> {
    text.lines().map(str::trim).filter(|line| !line.is_empty()).collect()
}

/// The page's code blocks in a language.
fn blocks(language: &str) -> Vec<&'static str> {
    let opening = format!("\n```{language}\n");
    let blocks = PAGE.split(&opening).skip(1);
    blocks.map(|block| block.split_once("\n```\n").unwrap().0).collect()
}

fn has(file: &str, block: &str) -> bool {
    let file = lines(file);
    let block = lines(block);
    file.windows(block.len()).any(|part| part == block)
}

#[test]
fn every_block_of_rust_is_a_piece_of_this_crate() {
    let blocks = blocks("rust");
    assert!(blocks.len() >= 6, "{}", blocks.len());
    for block in blocks {
        assert!(FILES.iter().any(|file| has(file, block)), "the page and the crate differ in:\n{block}");
    }
}

#[test]
fn the_page_has_the_whole_plugin_with_its_rule() {
    let (header, code): (Vec<&str>, Vec<&str>) =
        lines(PLUGIN).into_iter().partition(|line| line.starts_with("//!"));
    let whole = |block: &&str| lines(block) == code;
    assert_eq!(blocks("rust").iter().filter(|block| whole(block)).count(), 1);
    let header: Vec<&str> = header.iter().map(|line| line.trim_start_matches("//!").trim()).collect();
    assert!(has(&header.join("\n"), blocks("text")[0]), "the rule differs");
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

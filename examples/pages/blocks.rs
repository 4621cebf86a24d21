//! Compares the code blocks of a page of the documentation with the files of a crate. The tests `page` of the crates
//! own-algorithm, own-codec and own-transport use it.

/// Returns the lines without their indentation, which differs on the page.
pub(crate) fn lines(text: &str) -> Vec<&str> {
    text.lines().map(str::trim).filter(|line| !line.is_empty()).collect()
}

/// Returns the code blocks of a page in a language.
pub(crate) fn blocks<'a>(page: &'a str, language: &str) -> Vec<&'a str> {
    let opening = format!("\n```{language}\n");
    page.split(&opening).skip(1).map(|block| block.split_once("\n```\n").unwrap().0).collect()
}

/// Returns true if the lines of a block follow each other in a file.
pub(crate) fn has(file: &str, block: &str) -> bool {
    let block = lines(block);
    lines(file).windows(block.len()).any(|part| part == block)
}

/// Fails unless the page has at least `least` blocks of Rust, each a piece of one of the files.
pub(crate) fn check(page: &str, files: &[&str], least: usize) {
    let blocks = blocks(page, "rust");
    assert!(blocks.len() >= least, "{}", blocks.len());
    for block in blocks {
        assert!(files.iter().any(|file| has(file, block)), "the page and the crate differ in:\n{block}");
    }
}

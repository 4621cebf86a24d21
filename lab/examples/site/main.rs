//! Writes the site's page of each algorithm, with its pictures, and their table of contents into a folder:
//! `cargo run --release -p hexagram-lab --example site --features programs -- FOLDER`. `./test deep site` builds the site.
//!
//! | file | content |
//! |---|---|
//! | `behaviour.rs` | pictures of the recorded suite |
//! | `header.rs` | the update rule, from the first lines of the source file |
//! | `page.rs` | the page of an algorithm |

mod behaviour;
mod header;
mod page;

use hexagram::algorithms::{AnyAlgorithm, registry};
use hexagram_lab::run::{RunError, failure};
use hexagram_lab::suite::kept;
use std::fs;
use std::path::Path;
use std::process::ExitCode;

/// Folder of the repository.
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
/// Trigrams in the order of docs/algorithms.md.
const TRIGRAMS: [char; 8] = ['☰', '☴', '☱', '☵', '☲', '☳', '☶', '☷'];

fn main() -> ExitCode {
    let Some(folder) = std::env::args().nth(1) else {
        return failure("site", &*RunError::from("name the folder for the pages"));
    };
    match write(Path::new(&folder)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failure("site", &*error),
    }
}

fn write(folder: &Path) -> Result<(), RunError> {
    let results = kept(&Path::new(ROOT).join("docs"))?;
    let algorithms = sorted();
    fs::create_dir_all(folder)?;
    for algorithm in &algorithms {
        let name = algorithm.name();
        fs::write(folder.join(format!("{name}.md")), page::of(algorithm)?)?;
        for (measure, svg) in behaviour::pictures(&results, name) {
            fs::write(folder.join(format!("{name}-{measure}.svg")), svg)?;
        }
    }
    let line = |algorithm: &AnyAlgorithm| {
        let name = algorithm.name();
        format!("  - [{} {name}](algorithms/{name}.md)\n", algorithm.trigram().symbol())
    };
    fs::write(folder.join("contents"), algorithms.iter().map(line).collect::<String>())?;
    Ok(())
}

/// Returns the algorithms by trigram.
fn sorted() -> Vec<AnyAlgorithm> {
    let mut all = registry::all();
    all.sort_by_key(|algorithm| TRIGRAMS.iter().position(|known| *known == algorithm.trigram().symbol()));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_algorithm_has_a_page_with_rule_bytes_use_and_pictures() {
        let results = kept(&Path::new(ROOT).join("docs")).unwrap();
        for algorithm in sorted() {
            let (name, page) = (algorithm.name(), page::of(&algorithm).unwrap());
            for part in ["\n```text\n", "| use it for | ", "| bytes of a rank per step | "] {
                assert!(page.contains(part), "{name}, {part}: {page}");
            }
            assert!(!page.contains("](crate"), "{name}: {page}");
            for (measure, svg) in behaviour::pictures(&results, name) {
                assert!(page.contains(&format!("({name}-{measure}.svg)")), "{name}: {page}");
                let lines = if name == behaviour::REFERENCE { 1 } else { 2 };
                assert!(svg.matches("<polyline").count() >= lines, "{name} by {measure}: {svg}");
            }
        }
    }

    #[test]
    fn a_preset_has_the_rule_of_its_own_section() {
        let rule = |name: &str| header::of(name).unwrap().text;
        assert!(rule("powersgd").contains("P Qᵀ") && !rule("powersgd").contains("| bf16"));
        assert!(
            rule("muloco").contains("Nesterov momentum, with Δ") && rule("muloco").contains("Belilovsky")
        );
        assert!(!rule("diloco").contains("Belilovsky") && rule("compressed-ssp").contains("servers"));
        assert!(header::of("magic").is_err());
    }
}

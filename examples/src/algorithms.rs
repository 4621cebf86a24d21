//! Algorithms as users type them: `choco-sgd(codec=top-k(5%), graph=torus)`. Open this file to see what `--algorithm list` and
//! `--algorithm help:NAME` print, and how a run's folder is named.

use hexagram::Error;
use hexagram::algorithms::{AnyAlgorithm, Registry, registry};
use hexagram::physical::hash;

/// Returns what is printed instead of a training: for `list` the algorithms, for `help:NAME` what is known of an algorithm,
/// a codec or a graph. `None` for an algorithm.
///
/// # Errors
/// One line with the nearest names, for help on what there is not.
pub fn information(text: &str) -> Option<Result<String, Error>> {
    match text.strip_prefix("help:") {
        Some(name) => Some(Registry::built_in().help(name).map(|help| help.to_string())),
        None => (text == "list").then(|| Ok(list())),
    }
}

/// Returns the algorithms, one a line, name first, then the trigram.
fn list() -> String {
    let all = registry::all();
    let width = all.iter().map(|algorithm| algorithm.name().len()).max().unwrap_or(0);
    let line = |a: &AnyAlgorithm| format!("{:width$}  {} {}", a.name(), a.trigram().symbol(), a.trigram());
    all.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// Returns the short spellings of those that were asked for, each once; of all algorithms if none was.
///
/// # Errors
/// One line that says what is wrong with the first wrong one.
pub fn chosen(texts: &[String]) -> Result<Vec<String>, Error> {
    if texts.is_empty() {
        return Ok(registry::all().iter().map(ToString::to_string).collect());
    }
    let mut spellings: Vec<String> = Vec::new();
    for text in texts {
        let spelling = registry::named(text)?.to_string();
        if !spellings.contains(&spelling) {
            spellings.push(spelling);
        }
    }
    Ok(spellings)
}

/// Returns a name for the folder of an algorithm's run, of letters, digits, dots and single hyphens: an algorithm without
/// options has its own. A long spelling ends with a digest of what is left out.
pub fn folder_name(spelling: &str) -> String {
    const LONGEST: usize = 80;
    let plain = spelling.replace(|char: char| !char.is_ascii_alphanumeric() && char != '.', "-");
    let words: Vec<&str> = plain.split('-').filter(|word| !word.is_empty()).collect();
    let name = words.join("-");
    match name.get(..LONGEST) {
        Some(start) if name.len() > LONGEST => {
            format!("{start}-{:016x}", hash::of_bytes(hash::START, spelling.bytes()))
        }
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_has_a_line_per_algorithm_name_first() {
        let list = information("list").unwrap().unwrap();
        let line = list.lines().find(|line| line.starts_with("gradient-allreduce ")).unwrap();
        assert!(line.ends_with(" ☰ centralized, synchronous, full precision"), "{line}");
        assert_eq!(list.lines().count(), registry::all().len());
    }

    #[test]
    fn help_is_of_algorithms_codecs_and_graphs() {
        for (text, words) in
            [("help:choco-sgd", "Koloskova"), ("help:top-k", "keep=1%"), ("help:torus", "torus: graph")]
        {
            let help = information(text).unwrap().unwrap();
            assert!(help.contains(words), "{text}: {help}");
        }
        let error = information("help:choco").unwrap().unwrap_err().to_string();
        assert!(!error.contains('\n') && error.contains("`choco`"), "{error}");
        assert!(information("choco-sgd").is_none());
    }

    #[test]
    fn what_is_compared_is_spelled_short_and_once() {
        let texts = ["slowmo(period=8)", "slowmo", "slowmo( period = 9 )"].map(str::to_owned);
        assert_eq!(chosen(&texts).unwrap(), ["slowmo", "slowmo(period=9)"]);
        assert_eq!(chosen(&[]).unwrap().len(), registry::all().len());
        chosen(&["slowmo(period=0)".to_owned()]).unwrap_err();
    }

    #[test]
    fn folders_have_names_that_every_file_system_takes() {
        assert_eq!(folder_name("choco-sgd"), "choco-sgd");
        assert_eq!(
            folder_name("choco-sgd(codec=top-k(5%), graph=torus)"),
            "choco-sgd-codec-top-k-5-graph-torus"
        );
        let long =
            |period: u32| format!("slowmo(base={}local-sgd(period={period})", "slowmo(base=".repeat(12));
        assert!(folder_name(&long(3)).len() < 100);
        assert_ne!(folder_name(&long(3)), folder_name(&long(4)));
        for algorithm in registry::all() {
            assert_eq!(folder_name(&algorithm.to_string()), algorithm.name());
        }
    }
}

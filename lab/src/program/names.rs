//! Algorithms of a registry as users type them: `choco-sgd(codec=top-k(5%), graph=torus)`. Open this file to see what
//! `--algorithm list` and `--algorithm help:NAME` print, and how a run's folder is named.

use hexagram::Result;
use hexagram::algorithms::{AnyAlgorithm, Registry};
use hexagram::physical::hash;

/// Returns what is printed instead of a training: for `list` the algorithms, for `help:NAME` what is known of an algorithm,
/// a codec or a graph. `None` for an algorithm.
///
/// # Errors
/// One line with the nearest names, for help on what there is not.
pub fn information(registry: &Registry, text: &str) -> Option<Result<String>> {
    match text.strip_prefix("help:") {
        Some(name) => Some(registry.help(name).map(|help| help.to_string())),
        None => (text == "list").then(|| Ok(list(registry))),
    }
}

/// Returns the algorithms, one a line, name first, then the trigram.
fn list(registry: &Registry) -> String {
    let all = registry.all();
    let width = all.iter().map(|algorithm| algorithm.name().len()).max().unwrap_or(0);
    let line = |a: &AnyAlgorithm| format!("{:width$}  {} {}", a.name(), a.trigram().symbol(), a.trigram());
    all.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// Algorithm, with the short spelling that is printed for it.
#[derive(Debug, Clone)]
pub struct Chosen {
    /// Algorithm, with its options.
    pub algorithm: AnyAlgorithm,
    /// Spelling without the options that are the registry's defaults.
    pub spelling: String,
}

impl Chosen {
    /// Reads the spelling of an algorithm of the registry.
    ///
    /// # Errors
    /// As [`Registry::named`].
    pub fn named(registry: &Registry, text: &str) -> Result<Self> {
        Ok(Self::of(registry, &registry.named(text)?))
    }

    fn of(registry: &Registry, algorithm: &AnyAlgorithm) -> Self {
        Chosen { algorithm: algorithm.clone(), spelling: registry.short(algorithm).to_string() }
    }

    /// Returns those that were asked for, each once; all algorithms of the registry if none was.
    ///
    /// # Errors
    /// One line that says what is wrong with the first wrong one.
    pub fn all(registry: &Registry, texts: &[String]) -> Result<Vec<Self>> {
        if texts.is_empty() {
            return Ok(registry.all().iter().map(|algorithm| Self::of(registry, algorithm)).collect());
        }
        let mut chosen: Vec<Self> = Vec::new();
        for text in texts {
            let next = Self::named(registry, text)?;
            if chosen.iter().all(|other| other.spelling != next.spelling) {
                chosen.push(next);
            }
        }
        Ok(chosen)
    }
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
    use hexagram::algorithms::slowmo::SlowMo;

    #[test]
    fn the_list_has_a_line_per_algorithm_name_first() {
        let list = information(&Registry::built_in(), "list").unwrap().unwrap();
        let line = list.lines().find(|line| line.starts_with("gradient-allreduce ")).unwrap();
        assert!(line.ends_with(" ☰ centralized, synchronous, full precision"), "{line}");
        assert_eq!(list.lines().count(), Registry::built_in().all().len());
    }

    #[test]
    fn help_is_of_algorithms_codecs_and_graphs() {
        for (text, words) in
            [("help:choco-sgd", "Koloskova"), ("help:top-k", "keep=1%"), ("help:torus", "torus: graph")]
        {
            let help = information(&Registry::built_in(), text).unwrap().unwrap();
            assert!(help.contains(words), "{text}: {help}");
        }
        let error = information(&Registry::built_in(), "help:choco").unwrap().unwrap_err().to_string();
        assert!(!error.contains('\n') && error.contains("`choco`"), "{error}");
        assert!(information(&Registry::built_in(), "choco-sgd").is_none());
    }

    #[test]
    fn what_is_compared_is_spelled_short_and_once_by_the_registry_s_defaults() {
        let registry = Registry::built_in().with(SlowMo { period: 8, ..SlowMo::default() });
        let spellings = |texts: &[&str]| -> Result<Vec<String>> {
            let texts: Vec<String> = texts.iter().map(|text| (*text).to_owned()).collect();
            Ok(Chosen::all(&registry, &texts)?.into_iter().map(|chosen| chosen.spelling).collect())
        };
        assert_eq!(
            spellings(&["slowmo(period=8)", "slowmo", "slowmo( period = 9 )"]).unwrap(),
            ["slowmo", "slowmo(period=9)"]
        );
        assert_eq!(spellings(&[]).unwrap().len(), registry.all().len());
        spellings(&["slowmo(period=0)"]).unwrap_err();
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
        for algorithm in Registry::built_in().all() {
            assert_eq!(folder_name(&algorithm.to_string()), algorithm.name());
        }
    }
}

//! Algorithms of a registry as users type them: `choco-sgd(codec=top-k(5%), graph=torus)`.

use hexagram::Result;
use hexagram::algorithms::registry::Help;
use hexagram::algorithms::{AnyAlgorithm, Registry, optimizer};
use hexagram::logical::options_text::Catalogues;
use hexagram::physical::hash;

/// Word that stands for all algorithms of the registry, where a list of them is asked for.
#[cfg(feature = "programs")]
pub(crate) const ALL: &str = "all";

/// Returns the text to print instead of a training if `list` or `help:NAME` is given as algorithm or optimizer,
/// `None` otherwise. The help of an algorithm also covers codecs and graphs.
///
/// # Errors
/// The nearest names, in one line, if the name is unknown.
pub fn information(registry: &Registry, algorithm: &str, optimizer: Option<&str>) -> Option<Result<String>> {
    asked(algorithm, || algorithms(registry), |name| registry.help(name))
        .or_else(|| asked(optimizer?, optimizers, help_on_optimizer))
}

/// Returns the names with their summaries, one a line, for `list`; the help for `help:NAME`.
fn asked(
    text: &str,
    all: impl FnOnce() -> Vec<(String, String)>,
    help: impl FnOnce(&str) -> Result<Help>,
) -> Option<Result<String>> {
    match text.strip_prefix("help:") {
        Some(name) => Some(help(name).map(|help| help.to_string())),
        None => (text == "list").then(|| Ok(listed(&all()))),
    }
}

fn listed(all: &[(String, String)]) -> String {
    let width = all.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    all.iter().map(|(name, about)| format!("{name:width$}  {about}")).collect::<Vec<_>>().join("\n")
}

/// Returns the algorithms with their trigrams.
fn algorithms(registry: &Registry) -> Vec<(String, String)> {
    let about = |a: &AnyAlgorithm| format!("{} {}", a.trigram().symbol(), a.trigram());
    registry.all().iter().map(|algorithm| (algorithm.name().to_owned(), about(algorithm))).collect()
}

/// Returns the optimizers with their summaries.
fn optimizers() -> Vec<(String, String)> {
    optimizer::catalogue().names().map(|(name, about)| (name.to_owned(), about.to_owned())).collect()
}

fn help_on_optimizer(name: &str) -> Result<Help> {
    let catalogue = optimizer::catalogue();
    let fields = catalogue.help(name, &Catalogues::default())?;
    let about = catalogue.names().find(|(known, _)| *known == name).map_or("", |(_, about)| about);
    Ok(Help { name: name.to_owned(), kind: about.to_owned(), source: "", fields })
}

/// Algorithm, with the short spelling that is printed for it.
#[derive(Debug, Clone)]
pub struct ChosenAlgorithm {
    /// Algorithm, with its options.
    pub algorithm: AnyAlgorithm,
    /// Spelling without the options at the registry's defaults.
    pub spelling: String,
}

impl ChosenAlgorithm {
    /// Reads the spelling of an algorithm of the registry.
    ///
    /// # Errors
    /// As [`Registry::named`].
    pub fn named(registry: &Registry, text: &str) -> Result<Self> {
        Ok(Self::of(registry, &registry.named(text)?))
    }

    /// Returns an algorithm with its spelling in a registry.
    pub(crate) fn of(registry: &Registry, algorithm: &AnyAlgorithm) -> Self {
        ChosenAlgorithm { algorithm: algorithm.clone(), spelling: registry.short(algorithm).to_string() }
    }

    /// Returns the algorithms of a list separated by commas, or all algorithms of the registry for `all`.
    ///
    /// # Errors
    /// The first invalid one, or that the list is empty, in one line.
    #[cfg(feature = "programs")]
    pub(crate) fn listed(registry: &Registry, list: &str) -> Result<Vec<Self>> {
        if list == ALL {
            return Self::all(registry, &[]);
        }
        let texts = split_top_level(list);
        if texts.is_empty() {
            return Err(hexagram::Error::usage(
                "--algorithm is empty",
                "name algorithms, separated by commas, or use `all`",
            ));
        }
        Self::all(registry, &texts)
    }

    /// Returns the requested algorithms, each once; all algorithms of the registry if none was requested.
    ///
    /// # Errors
    /// The first invalid one, in one line.
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

/// Splits a text at the commas outside brackets.
#[cfg(feature = "programs")]
fn split_top_level(text: &str) -> Vec<String> {
    let mut depth = 0usize;
    let mut parts = vec![String::new()];
    for letter in text.chars() {
        match letter {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        match (letter, parts.last_mut()) {
            (',', _) if depth == 0 => parts.push(String::new()),
            (_, Some(part)) => part.push(letter),
            (_, None) => {}
        }
    }
    parts.into_iter().map(|part| part.trim().to_owned()).filter(|part| !part.is_empty()).collect()
}

/// Returns a name for the folder of an algorithm's run, of letters, digits, dots and single hyphens. An algorithm
/// without options has its own name as folder; a long spelling ends with a digest of the part left out.
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

#[cfg(all(test, feature = "programs"))]
mod tests {
    use super::*;
    use hexagram::algorithms::slowmo::SlowMo;

    #[test]
    fn the_list_has_a_line_per_algorithm_name_first() {
        let list = information(&Registry::built_in(), "list", None).unwrap().unwrap();
        let line = list.lines().find(|line| line.starts_with("gradient-allreduce ")).unwrap();
        assert!(line.ends_with(" ☰ centralized, synchronous, full precision"), "{line}");
        assert_eq!(list.lines().count(), Registry::built_in().all().len());
    }

    #[test]
    fn help_is_of_algorithms_codecs_and_graphs() {
        for (text, words) in
            [("help:choco-sgd", "Koloskova"), ("help:top-k", "keep=1%"), ("help:torus", "torus: graph")]
        {
            let help = information(&Registry::built_in(), text, None).unwrap().unwrap();
            assert!(help.contains(words), "{text}: {help}");
        }
        let error = information(&Registry::built_in(), "help:choco", None).unwrap().unwrap_err().to_string();
        assert!(!error.contains('\n') && error.contains("`choco`"), "{error}");
        assert!(information(&Registry::built_in(), "choco-sgd", None).is_none());
    }

    #[test]
    fn optimizers_have_a_list_and_help_too() {
        let of = |text: &str| information(&Registry::built_in(), "d-psgd", Some(text));
        let list = of("list").unwrap().unwrap();
        assert_eq!(list.lines().count(), optimizer::catalogue().names().count());
        assert!(list.contains("adamw  adaptive moments, with decoupled weight decay"), "{list}");
        let help = of("help:adamw").unwrap().unwrap();
        assert!(help.starts_with("adamw: adaptive moments") && help.contains("beta2=0.999"), "{help}");
        let error = of("help:adamv").unwrap().unwrap_err().to_string();
        assert!(!error.contains('\n') && error.contains("did you mean adam or adamw?"), "{error}");
        assert!(of("adamw").is_none());
    }

    #[test]
    fn what_is_compared_is_spelled_short_and_once_by_the_registry_s_defaults() {
        let registry = Registry::built_in().with(SlowMo { period: 8, ..SlowMo::default() });
        let spellings = |texts: &[&str]| -> Result<Vec<String>> {
            let texts: Vec<String> = texts.iter().map(|text| (*text).to_owned()).collect();
            Ok(ChosenAlgorithm::all(&registry, &texts)?.into_iter().map(|chosen| chosen.spelling).collect())
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

//! Tests of the grammar and of the visitor, on texts and trees of any kind.

use super::grammar::{DEEPEST, LONGEST};
use super::*;
use crate::Result;
use proptest::prelude::*;

fn word() -> impl Strategy<Value = String> {
    proptest::string::string_regex("[a-z0-9_.%+é:-]{1,12}").unwrap()
}

fn tree() -> impl Strategy<Value = OptionsText> {
    let leaf = word().prop_map(OptionsText::of);
    leaf.prop_recursive(4, 24, 4, |inner| {
        let others = prop::collection::vec((word(), inner.clone()), 0..4);
        (word(), prop::option::of(inner), others).prop_map(|(word, first, others)| {
            let first = first.map(|value| Argument { field: None, value });
            let others = others.into_iter().map(|(field, value)| Argument { field: Some(field), value });
            OptionsText { word, arguments: first.into_iter().chain(others).collect() }
        })
    })
}

proptest! {
    #[test]
    fn what_is_printed_is_parsed_as_it_was(tree in tree()) {
        prop_assert_eq!(tree.to_string().parse::<OptionsText>().unwrap(), tree);
    }

    #[test]
    fn any_text_is_a_tree_or_an_error_of_one_line(text in "\\PC*|[a-z(),= \t\n%5-]{0,60}") {
        match text.parse::<OptionsText>() {
            Ok(tree) => prop_assert_eq!(tree.to_string().parse::<OptionsText>().unwrap(), tree),
            Err(error) => {
                let line = error.to_string();
                prop_assert!(!line.contains('\n') && line.len() < 700, "{}", line);
            }
        }
    }

    #[test]
    fn options_read_any_tree_without_a_panic(tree in tree()) {
        let mut thing = Thing::default();
        let outcome = Options::read(&tree, &Catalogues::default(), |options| thing.options(options));
        if let Err(error) = outcome {
            prop_assert!(!error.to_string().contains('\n'));
        }
    }
}

#[test]
fn depth_and_length_are_bounded() {
    let nested = |depth: usize| format!("{}a{}", "a(".repeat(depth), ")".repeat(depth));
    nested(DEEPEST).parse::<OptionsText>().unwrap();
    let error = nested(DEEPEST + 1).parse::<OptionsText>().unwrap_err().to_string();
    assert!(error.contains("more than 16 nested parentheses"), "{error}");
    "a".repeat(LONGEST).parse::<OptionsText>().unwrap();
    let error = "a".repeat(LONGEST + 1).parse::<OptionsText>().unwrap_err().to_string();
    assert!(error.contains("has 4097 bytes; use 4096 at most"), "{error}");
    "(".repeat(LONGEST).parse::<OptionsText>().unwrap_err();
}

#[test]
fn errors_of_the_grammar_say_where() {
    for (text, place) in [
        ("", "ends at character 1"),
        ("a(", "ends at character 3"),
        ("a(b=1", "ends at character 6"),
        ("a(b=1))", "has ')' at character 7"),
        ("a(b=1, 2)", "has ')' at character 9; write `=` and a value"),
        ("a(=1)", "has '=' at character 3"),
        ("a b", "has 'b' at character 3"),
        ("a(b=1,)", "has ')' at character 7"),
    ] {
        let error = text.parse::<OptionsText>().unwrap_err().to_string();
        assert!(error.contains(place), "{text}: {error}");
    }
    assert_eq!("a()".parse::<OptionsText>().unwrap(), OptionsText::of("a"));
    assert_eq!(" a ( b = 5% ) ".parse::<OptionsText>().unwrap().to_string(), "a(b=5%)");
}

/// Options of every kind.
#[derive(Debug, Clone, PartialEq)]
struct Thing {
    period: u64,
    rate: f64,
    clip: Option<f64>,
    nesterov: bool,
    bits: u8,
}

impl Default for Thing {
    fn default() -> Self {
        Thing { period: 4, rate: 0.5, clip: None, nesterov: false, bits: 4 }
    }
}

impl NamedOptions for Thing {
    fn keyword(&self) -> &'static str {
        "thing"
    }

    fn options(&mut self, options: &mut Options) -> Result<()> {
        options.field("period", &mut self.period, 1.., "steps")?;
        options.field("slow_rate", &mut self.rate, above(0.0).up_to(1.0), "rate")?;
        options.field("clip", &mut self.clip, or("none", above(0.0)), "norm")?;
        options.field("nesterov", &mut self.nesterov, truth(), "true to look ahead")?;
        options.field("bits", &mut self.bits, one_of(&[("4", 4), ("8", 8)]), "bits")?;
        options.require(
            self.period > 2 || !self.nesterov,
            "nesterov",
            &self.nesterov,
            "false with short periods",
        )
    }
}

fn read(text: &str) -> Result<Thing> {
    Thing::default().with(&text.parse()?, &Catalogues::default())
}

#[test]
fn options_are_read_and_printed() {
    let found = read("thing(7, slow-rate=2%, clip=1.5, nesterov=true, bits=8)").unwrap();
    assert_eq!(found, Thing { period: 7, rate: 0.02, clip: Some(1.5), nesterov: true, bits: 8 });
    let full = found.full().to_string();
    assert_eq!(full, "thing(period=7, slow_rate=0.02, clip=1.5, nesterov=true, bits=8)");
    assert_eq!(read(&full).unwrap(), found);
    assert_eq!(found.short(&Thing { bits: 4, ..found.clone() }).to_string(), "thing(bits=8)");
    assert_eq!(Thing::default().short(&Thing::default()).to_string(), "thing");
    assert_eq!(read("thing(clip=none)").unwrap(), Thing::default());
}

#[test]
fn wrong_options_are_refused_in_one_line_with_field_value_and_range() {
    for (text, line) in [
        ("thing(0)", "period of thing is 0; choose a whole number, 1 or more"),
        ("thing(period=1.5)", "period of thing is 1.5; choose a whole number, 1 or more"),
        ("thing(slow_rate=NaN)", "slow_rate of thing is NaN; choose a number, above 0, 1 at most"),
        ("thing(slow_rate=f(1))", "slow_rate of thing is f(1); choose a number, above 0, 1 at most"),
        ("thing(clip=0)", "clip of thing is 0; choose none, or a number, above 0"),
        ("thing(nesterov=yes)", "nesterov of thing is yes; choose true or false"),
        ("thing(bits=5)", "bits of thing is 5; choose 4 or 8"),
        ("thing(period=2, nesterov=true)", "nesterov of thing is true; choose false with short periods"),
        ("thing(period=2, period=3)", "period of thing is given 2 times; give it once"),
        ("thing(2, period=3)", "period of thing is given 2 times; give it once"),
        ("thing(perod=2)", "unknown option of thing `perod`; did you mean period?"),
        ("thing(xyz=2)", "unknown option of thing `xyz`; use one of period, slow_rate, clip, nesterov, bits"),
    ] {
        assert_eq!(read(text).unwrap_err().to_string(), line, "{text}");
    }
}

#[test]
fn options_from_code_are_checked_alike() {
    let check = |mut thing: Thing| Options::check("thing", |options| thing.options(options));
    check(Thing::default()).unwrap();
    for (thing, line) in [
        (Thing { period: 0, ..Thing::default() }, "period of thing is 0; choose a whole number, 1 or more"),
        (
            Thing { rate: f64::NAN, ..Thing::default() },
            "slow_rate of thing is NaN; choose a number, above 0, 1 at most",
        ),
        (
            Thing { clip: Some(f64::INFINITY), ..Thing::default() },
            "clip of thing is inf; choose none, or a number, above 0",
        ),
        (Thing { bits: 5, ..Thing::default() }, "bits of thing is ?; choose 4 or 8"),
    ] {
        assert_eq!(check(thing).unwrap_err().to_string(), line);
    }
}

#[test]
fn options_are_described() {
    let mut thing = Thing::default();
    let fields = Options::describe("thing", &Catalogues::default(), |options| thing.options(options));
    let clip = FieldHelp {
        name: "clip",
        value: "none".to_owned(),
        range: "none, or a number, above 0".to_owned(),
        about: "norm",
    };
    assert_eq!(fields[2], clip);
    assert_eq!(fields.len(), 5);
}

#[test]
fn the_nearest_names_are_near() {
    let names = ["choco-sgd", "d-psgd", "ad-psgd", "dgc", "slowmo"];
    assert_eq!(nearest("choco", names), ["choco-sgd"]);
    assert_eq!(nearest("ch", names), [""; 0]);
    assert_eq!(nearest("Choco-sgd", names), ["choco-sgd"]);
    assert_eq!(nearest("dpsgd", names), ["d-psgd", "ad-psgd"]);
    assert_eq!(nearest("magic", names), [""; 0]);
    assert_eq!(nearest("", names), [""; 0]);
    let long = "x".repeat(100_000);
    assert_eq!(nearest(&long, names), [""; 0]);
    assert!(no_such("graph", &long, names).to_string().len() < 200);
}

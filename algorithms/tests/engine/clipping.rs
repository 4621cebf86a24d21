//! Clipping by a norm under every algorithm: where it applies, that it loses nothing, and the table in the docs.

use hexagram_algorithms::compressed_allreduce::CompressedAllReduce;
use hexagram_algorithms::dgc::Dgc;
use hexagram_algorithms::ef21::Ef21;
use hexagram_algorithms::gradient_tracking::GradientTracking;
use hexagram_algorithms::logical::testing::spawn;
use hexagram_algorithms::logical::{Communicator, Result, TransportKind};
use hexagram_algorithms::signsgd_vote::SignSgdVote;
use hexagram_algorithms::testing::{Setup, Trainer};
use hexagram_algorithms::{
    About, Algorithm, AnyAlgorithm, Bucket, Clipping, Context, EngineOptions, GradientAllReduce, Trigram,
    registry,
};

const RANKS: usize = 2;
/// Elements of the model: a matrix of 6 × 8, and a vector of the rest.
const ELEMENTS: usize = 64;
const MATRIX: usize = 48;

fn trainer(comm: &Communicator, algorithm: &AnyAlgorithm, clip_norm: Option<f64>) -> Result<Trainer<f32>> {
    let sizes = Setup::default().engine;
    let engine = EngineOptions { clip_norm, bucket_bytes: 80, first_bucket_bytes: 80, ..sizes };
    let setup = Setup { engine, ..Setup::default() };
    let initial = [vec![0.0f32; MATRIX], vec![0.0; ELEMENTS - MATRIX]];
    let shapes = [vec![6, 8], vec![ELEMENTS - MATRIX]];
    Trainer::with_shapes(comm, algorithm.clone(), setup, &initial, &shapes)
}

/// Returns the model of rank 0 after a step at each rate, with a `gradient` of rank, step, element and its value.
fn train(
    algorithm: &AnyAlgorithm,
    clip_norm: Option<f64>,
    rates: &[f64],
    gradient: impl Fn(usize, usize, usize, f32) -> f32 + Sync,
) -> Vec<f32> {
    let found = spawn(TransportKind::Thread, RANKS, |comm| {
        let mut trainer = trainer(&comm, algorithm, clip_norm)?;
        for (step, rate) in rates.iter().enumerate() {
            trainer.engine().set_learning_rate(*rate);
            trainer.step(|tensor, x| {
                let of = |(at, x): (usize, &f32)| gradient(comm.rank(), step, tensor * MATRIX + at, *x);
                x.iter().enumerate().map(of).collect()
            })?;
        }
        trainer.engine().settle()?;
        Ok(trainer.parameters()?.concat())
    });
    found.unwrap().remove(0)
}

fn norm(x: &[f32]) -> f64 {
    x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt()
}

/// Returns the algorithms of the registry that clip the gradients of all ranks together.
fn together() -> Vec<AnyAlgorithm> {
    registry::all().into_iter().filter(|algorithm| algorithm.clipping() == Clipping::Together).collect()
}

#[test]
fn what_is_clipped_is_not_lost() {
    // The minimum of ½‖x − b‖² of rank r differs from that of the mean.
    let minimum = |at: usize| ((at * 7) % 23) as f32 * 0.1 - 1.1;
    let pull = |rank: usize, _: usize, at: usize, x: f32| x - minimum(at) - 0.05 * (rank as f32 - 0.5);
    let falling =
        |rate: f64| -> Vec<f64> { (0..250).map(|step| rate * 0.98f64.powi((step - 75).max(0))).collect() };
    let algorithms: [(AnyAlgorithm, f64); 6] = [
        (GradientAllReduce.into(), 0.3),
        (CompressedAllReduce::TopK { fraction: 0.2 }.into(), 0.3),
        (Dgc { fraction: 0.2, warm_up: 0, masking: false, ..Dgc::default() }.into(), 0.03),
        (CompressedAllReduce::LowRank { rank: 1, saving: 2.0, start: 0 }.into(), 0.3),
        (Ef21 { fraction: 0.2, ..Ef21::default() }.into(), 0.2),
        (GradientTracking::default().into(), 0.3),
    ];
    for (algorithm, rate) in algorithms {
        let found = train(&algorithm, Some(1.0), &falling(rate), pull);
        let rest: Vec<f32> = (0..ELEMENTS).map(|at| found[at] - minimum(at)).collect();
        assert!(norm(&rest) < 1e-2, "{} ended {} from the minimum", algorithm.name(), norm(&rest));
    }
}

/// Returns an element of a gradient whose norm is the same for all ranks and steps.
fn turned(rank: usize, step: usize, at: usize) -> f32 {
    2.0 * ((at + rank * 5 + step * 7) % ELEMENTS) as f32 - 63.0
}

#[test]
fn gradients_are_clipped_by_one_factor_before_the_hooks() {
    let norm = (0..ELEMENTS).map(|at| f64::from(turned(0, 0, at)).powi(2)).sum::<f64>().sqrt();
    for algorithm in together() {
        // Exactly a quarter: the same as passing a quarter of every gradient.
        let clipped =
            train(&algorithm, Some(norm / 4.0), &[0.01; 6], |rank, step, at, _| turned(rank, step, at));
        let given = train(&algorithm, None, &[0.01; 6], |rank, step, at, _| turned(rank, step, at) / 4.0);
        assert_eq!(clipped, given, "{}", algorithm.name());
    }
}

#[test]
fn the_factor_is_of_the_root_mean_square_of_all_ranks_norms() {
    // Norms of 8 · 3 and 8 · 1: R = 8 √5, and c / R is 1/√5.
    let gradient = |rank: usize, _: usize, _: usize, _: f32| if rank == 0 { 3.0 } else { 1.0 };
    let found = train(&CompressedAllReduce::TopK { fraction: 1.0 }.into(), Some(8.0), &[0.5], gradient);
    let expected = -0.5 * 2.0 / 5f64.sqrt();
    assert!(found.iter().all(|x| (f64::from(*x) - expected).abs() < 1e-6), "{found:?} and not {expected}");
}

#[test]
fn directions_of_the_length_of_the_model_are_not_shortened() {
    // Of similar size, as zero-one-adam takes shorter steps where a gradient is much smaller than the others.
    let gradient = |at: usize| turned(0, 0, at).signum() * (5.0 + (at % 3) as f32);
    for name in ["qadam", "qadam-8bit", "zero-one-adam", "signsgd-vote", "demo"] {
        let found = train(&registry::named(name).unwrap(), Some(0.1), &[0.01], |_, _, at, _| gradient(at));
        let length = norm(&found) / 0.01;
        assert!((length - 8.0).abs() < 1e-2, "{name}: a direction of 64 elements is {length} long");
    }
}

#[test]
fn gradients_without_a_norm_name_their_tensor() {
    let errors = spawn(TransportKind::Thread, RANKS, |comm| {
        let mut trainer = trainer(&comm, &CompressedAllReduce::top_k().into(), Some(1.0))?;
        let bad = |tensor: usize, at: usize| comm.rank() == 1 && (tensor, at) == (0, 5);
        let step = trainer
            .step(|tensor, x| (0..x.len()).map(|at| if bad(tensor, at) { f32::NAN } else { 1.0 }).collect());
        Ok(step.unwrap_err().to_string())
    });
    for error in errors.unwrap() {
        assert!(error.contains("element 5 of that of `p0` is NaN"), "{error}");
    }
}

/// Returns the error on every rank for an algorithm with clipped gradients.
fn refused(algorithm: &AnyAlgorithm) -> Vec<String> {
    let new = |comm: Communicator| Ok(trainer(&comm, algorithm, Some(1.0)).err().unwrap().to_string());
    spawn(TransportKind::Thread, RANKS, new).unwrap()
}

#[test]
fn where_no_rule_makes_sense_clipping_is_refused_with_the_reason() {
    for error in refused(&SignSgdVote { momentum: 0.0 }.into()) {
        assert!(error.contains("signsgd-vote") && error.contains("no clipping changes"), "{error}");
    }
}

/// Declares an invalid combination.
#[derive(Debug, Clone)]
struct Hasty;

impl Algorithm for Hasty {
    type State = ();

    fn about(&self) -> About {
        About::new("hasty", Trigram { centralized: true, synchronous: false, full_precision: true })
            .clipping(Clipping::Together)
    }

    async fn state(&self, _: &Context, _: &Bucket) -> Result<()> {
        Ok(())
    }
}

#[test]
fn ranks_that_do_not_wait_for_each_other_cannot_clip_together() {
    for error in refused(&Hasty.into()) {
        assert!(error.contains("do not wait for each other"), "{error}");
    }
}

#[test]
fn the_table_in_the_docs_is_what_algorithms_declare() {
    let docs = include_str!("../../../docs/algorithms.md");
    let listed = |declared: &str| -> Vec<String> {
        let row = docs.lines().find(|line| line.starts_with(&format!("| `Clipping::{declared}`"))).unwrap();
        let names = row.split('`').skip(3).step_by(2).map(str::to_owned);
        names.collect()
    };
    for clipping in [Clipping::Outcome, Clipping::Together] {
        let all = registry::all();
        let mut declare: Vec<&str> =
            all.iter().filter(|algorithm| algorithm.clipping() == clipping).map(|a| a.name()).collect();
        let mut listed = listed(&format!("{clipping:?}"));
        declare.sort_unstable();
        listed.sort_unstable();
        assert_eq!(listed, declare, "{clipping:?}");
    }
}

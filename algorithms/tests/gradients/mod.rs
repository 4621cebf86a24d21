//! Algorithms that exchange gradients or directions in each step: against their rules, step by step, and the bytes of
//! their headers. Each file is a module here.

mod adams;
mod bucket_sizes;
mod by_hand;
mod bytegrad;
mod compressed_allreduce;
mod demo;
mod dgc;
mod ef21;
mod loco;
mod powersgd;
mod qadam;
mod signsgd_vote;
mod topk_ef;
mod zero_one_adam;

use crate::replicas::{Run, blame_rank_1};
use hexagram_algorithms::registry;

/// A rank that cannot encode its gradient ends the training, and every rank names it.
#[test]
fn a_gradient_that_is_not_a_number_ends_the_training_and_names_the_rank() {
    let gradient = |rank| if rank == 1 { f32::NAN } else { 1.0 };
    // A matrix: some of them send vectors as they are.
    let run = Run { ranks: 3, shape: vec![20, 30], ..Run::default() };
    for name in ["topk-ef", "powersgd(start=0)", "dgc(warm_up=0)", "demo(keep=4)", "ef21", "loco"] {
        blame_rank_1(&run.refused(|| registry::named(name).unwrap(), gradient));
    }
}

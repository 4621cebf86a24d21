//! The algorithms by the names that users type.
//!
//! ```
//! use hexagram_algorithms::registry;
//!
//! let algorithm = registry::named("bytegrad")?;
//! assert!(!algorithm.trigram().full_precision);
//! assert!(registry::all().len() > 20);
//! # Ok::<(), hexagram_algorithms::logical::Error>(())
//! ```

use crate::ad_psgd::AdPsgd;
use crate::async_model_average::AsyncModelAverage;
use crate::bytegrad::ByteGrad;
use crate::choco_sgd::ChocoSgd;
use crate::compressed_allreduce::CompressedAllReduce;
use crate::d_psgd::DPsgd;
use crate::decentralized::Decentralized;
use crate::deepsqueeze::DeepSqueeze;
use crate::demo::DeMo;
use crate::dgc::Dgc;
use crate::diloco::DiLoCo;
use crate::easgd::Easgd;
use crate::ef21::Ef21;
use crate::exact_diffusion::ExactDiffusion;
use crate::extra::Extra;
use crate::gossip_pga::GossipPga;
use crate::gradient_all_reduce::GradientAllReduce;
use crate::gradient_tracking::GradientTracking;
use crate::local_sgd::LocalSgd;
use crate::low_precision_decentralized::LowPrecisionDecentralized;
use crate::plugin::Algorithm;
use crate::plugin::AnyAlgorithm;
use crate::post_local_sgd::PostLocalSgd;
use crate::powersgd::PowerSgd;
use crate::qadam::QAdam;
use crate::qg_dsgdm::QgDsgdm;
use crate::relaysgd::RelaySgd;
use crate::sgp::Sgp;
use crate::signsgd_vote::SignSgdVote;
use crate::slowmo::SlowMo;
use crate::ssp::Ssp;
use crate::streaming_diloco::StreamingDiLoCo;
use crate::topk_ef::TopKEf;
use crate::zero_one_adam::ZeroOneAdam;
use hexagram_logical::{Error, Result};

/// Returns every algorithm, with its defaults: Bagua's first, then those that came after it.
pub fn all() -> Vec<AnyAlgorithm> {
    let mut all = List::new();
    // Bagua's.
    add::<GradientAllReduce>(&mut all);
    add::<ByteGrad>(&mut all);
    add::<QAdam>(&mut all);
    all.push(QAdam::eight_bits().into());
    add::<Decentralized>(&mut all);
    add::<LowPrecisionDecentralized>(&mut all);
    add::<AsyncModelAverage>(&mut all);
    // Beyond Bagua.
    add::<LocalSgd>(&mut all);
    add::<PostLocalSgd>(&mut all);
    add::<SlowMo>(&mut all);
    add::<DiLoCo>(&mut all);
    add::<StreamingDiLoCo>(&mut all);
    add::<DPsgd>(&mut all);
    add::<GradientTracking>(&mut all);
    add::<GossipPga>(&mut all);
    add::<ExactDiffusion>(&mut all);
    add::<Extra>(&mut all);
    add::<QgDsgdm>(&mut all);
    add::<RelaySgd>(&mut all);
    add::<Sgp>(&mut all);
    add::<AdPsgd>(&mut all);
    add::<ChocoSgd>(&mut all);
    add::<DeepSqueeze>(&mut all);
    add::<CompressedAllReduce>(&mut all);
    add::<PowerSgd>(&mut all);
    add::<TopKEf>(&mut all);
    add::<Dgc>(&mut all);
    add::<Ef21>(&mut all);
    add::<SignSgdVote>(&mut all);
    add::<ZeroOneAdam>(&mut all);
    add::<Easgd>(&mut all);
    add::<Ssp>(&mut all);
    add::<DeMo>(&mut all);
    all
}

type List = Vec<AnyAlgorithm>;

fn add<A: Algorithm + Default>(all: &mut List) {
    all.push(A::default().into());
}

/// Returns the algorithm of that name, with its defaults.
///
/// # Errors
/// [`Error::Usage`] that lists the names there are.
pub fn named(name: &str) -> Result<AnyAlgorithm> {
    let all = all();
    if let Some(found) = all.iter().find(|algorithm| algorithm.name() == name) {
        return Ok(found.clone());
    }
    let names: Vec<&str> = all.iter().map(|algorithm| algorithm.name()).collect();
    Err(Error::usage(format!("there is no algorithm `{name}`"), format!("use one of: {}", names.join(", "))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_finds_its_algorithm() {
        for algorithm in all() {
            assert_eq!(named(algorithm.name()).unwrap().name(), algorithm.name());
        }
    }

    #[test]
    fn no_name_occurs_twice() {
        let mut names: Vec<String> = all().iter().map(|algorithm| algorithm.name().to_owned()).collect();
        let listed = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), listed, "{names:?}");
    }

    #[test]
    fn an_unknown_name_lists_the_known_ones() {
        let error = named("magic").err().unwrap().to_string();
        assert!(error.contains("`magic`") && error.contains("gradient-allreduce"), "{error}");
    }
}

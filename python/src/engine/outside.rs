//! The algorithm in the Rust engine for an algorithm in Python. It does nothing: Python runs its own hooks between the
//! calls of the engine, on the bucket memory.

use hexagram::algorithms::{About, Bucket, Buckets, Context, Needs, Trigram};
use hexagram::{Algorithm, Result};
use pyo3::prelude::*;
use std::fmt;

/// Algorithm that is implemented in Python.
#[derive(Clone, FromPyObject)]
#[pyo3(from_item_all)]
pub(super) struct Outside {
    /// Class and options, which must be the same on all ranks.
    described: String,
    centralized: bool,
    full_precision: bool,
    /// True if all replicas are bit-identical after every step.
    identical: bool,
    /// True for one bucket of each element type.
    whole: bool,
}

/// Text that ranks compare; the error of a difference shows its beginning.
impl fmt::Debug for Outside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Outside { described, centralized, full_precision, identical, whole } = self;
        let traits = [
            ("centralized", centralized),
            ("full_precision", full_precision),
            ("keeps_replicas_identical", identical),
            ("whole_buckets", whole),
        ];
        f.write_str(described)?;
        traits.iter().filter(|(_, holds)| **holds).try_for_each(|(name, _)| write!(f, " {name}"))
    }
}

impl Algorithm for Outside {
    type State = ();

    fn about(&self) -> About {
        let Outside { centralized, full_precision, .. } = *self;
        // Its hooks run on the training thread, so every step waits for them.
        About::new("python", Trigram { centralized, synchronous: true, full_precision })
            .keeps_replicas_identical(self.identical)
            .needs(Needs {
                buckets: if self.whole { Buckets::Whole } else { Buckets::BySize },
                parameters: true,
            })
    }

    async fn state(&self, _: &Context, _: &Bucket) -> Result<()> {
        Ok(())
    }
}

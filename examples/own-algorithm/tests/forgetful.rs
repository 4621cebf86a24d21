//! The test kit finds a common mistake: state that is missing from the checkpoint.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use hexagram::Result;
use hexagram::algorithms::testing::{Setup, resumes_exactly};
use hexagram::algorithms::{About, Algorithm, Bucket, Buckets, Context, Fields, Needs, Trigram};
use std::sync::Arc;

/// Local SGD that counts its steps itself, and may forget to save the count.
#[derive(Debug, Clone)]
struct Counting {
    forgets: bool,
}

impl Algorithm for Counting {
    type State = u64;

    fn about(&self) -> About {
        About::new("counting", Trigram { centralized: true, synchronous: true, full_precision: true })
            .needs(Needs { buckets: Buckets::Whole, parameters: true })
    }

    async fn state(&self, _: &Context, _: &Bucket) -> Result<u64> {
        Ok(0)
    }

    async fn after_step(&self, context: &Context, count: &mut u64, bucket: &mut Bucket) -> Result<()> {
        *count += 1;
        if count.is_multiple_of(4) { context.mean(&mut bucket.parameters).await } else { Ok(()) }
    }

    fn checkpoint(&self, count: &mut u64, fields: &mut Fields) -> Result<()> {
        if self.forgets { Ok(()) } else { fields.count("count", count) }
    }
}

#[test]
fn a_state_that_is_not_in_the_checkpoint_is_found() {
    let resume = |forgets| resumes_exactly(3, 2, 5, &Setup::default, || Arc::new(Counting { forgets }));
    resume(false).unwrap();
    let error = resume(true).unwrap_err().to_string();
    assert!(error.contains("after a resume") && error.contains("`checkpoint`"), "{error}");
}

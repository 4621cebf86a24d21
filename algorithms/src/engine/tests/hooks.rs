//! Hooks: which of them run when, and beside which others.

use super::*;

/// Lets bucket 0 wait until bucket 1 has been communicated.
#[derive(Debug)]
struct SlowFirst {
    second_is_done: AtomicUsize,
}

impl Algorithm for SlowFirst {
    type State = usize;

    fn name(&self) -> &'static str {
        "slow-first"
    }

    fn trigram(&self) -> Trigram {
        Algorithm::trigram(&GradientAllReduce)
    }

    async fn state(&self, _: &Context, bucket: &Bucket) -> Result<usize> {
        Ok(bucket.len())
    }

    async fn gradients_ready(&self, context: &Context, len: &mut usize, bucket: &mut Bucket) -> Result<()> {
        if *len == 1 {
            std::future::poll_fn(|_| match self.second_is_done.load(Ordering::SeqCst) {
                0 => std::task::Poll::Pending,
                _ => std::task::Poll::Ready(()),
            })
            .await;
        }
        context.comm().all_reduce(&mut bucket.gradients, ReduceOp::Sum).await?;
        self.second_is_done.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
}

#[test]
fn a_slow_bucket_does_not_keep_the_next_from_starting() {
    spawn(TransportKind::Shm, 2, |comm| {
        let list = vec![parameter("second", DType::F32, 2), parameter("first", DType::F32, 1)];
        let algorithm = Arc::new(SlowFirst { second_is_done: AtomicUsize::new(0) });
        let mut engine = DataParallel::new(&comm, list, algorithm, options(4, 8))?;
        assert_eq!(engine.buckets(), [(DType::F32, 1), (DType::F32, 2)]);
        engine.begin(Mode::Synchronize)?;
        engine.hooks().ready_slice(1, &[1.0f32])?;
        engine.hooks().ready_slice(0, &[1.0f32; 2])?;
        engine.finish()
    })
    .unwrap();
}

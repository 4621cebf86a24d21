//! The mean in low precision for ranks that keep their own values: the change for each rank that makes all agree, and
//! preserves the mean over ranks.

use super::roles::EncodedRoles;
use super::scatter_gather::{check, fingerprint};
use super::{entry, segments};
use crate::centralized::chunk::chunk;
use crate::encoding::{Encoding, Feedback};
use crate::{Buffer, Communicator, Primitive, ReduceOp};

impl Communicator {
    /// Computes the mean of all values in low precision, and the value that each rank must exchange for it: the
    /// caller does `x ← x + γ (mean − value)` with 0 < γ ≤ 1, on the current x.
    ///
    /// On entry `value` holds xᵢ. With C the codec, D its decoding, and ĥᵢ, m and H the memory of difference
    /// feedback, as in [`all_reduce_encoded`](Communicator::all_reduce_encoded):
    ///
    /// > ĥᵢ ← ĥᵢ + D(C(xᵢ − ĥᵢ)); m ← (1/n) Σⱼ ĥⱼ; H ← H + D(C(m − H));
    /// > value ← ĥᵢ; mean ← H, and of the own chunk H + n (m − H)
    ///
    /// All ranks together add γ Σᵢ (H + n (m − H) of the own chunk − ĥᵢ) = γ n (m − m) = 0. Each rank keeps its own
    /// codec error, or the owner of a chunk compensates it, so that the mean of all x is preserved, up to f32
    /// rounding in each call; the owner has exact copies of all ĥⱼ, and recomputes m from them. As xᵢ converge, so do
    /// ĥᵢ and H, and messages become small. With γ = 1 and a fine codec (8 bits), a rank has the mean after one call,
    /// up to the codec error; coarse codecs need γ of about their δ.
    ///
    /// Bytes, steps and determinism: those of `all_reduce_encoded`. Memory: the same, and ĥⱼ of the own chunk, S in
    /// total. It is CHOCO (Koloskova, Stich and Jaggi, 2019) on the complete graph, with a mean that is compressed in
    /// both directions.
    ///
    /// # Errors
    /// [`Error::Usage`](crate::Error::Usage) unless the feedback of the encoding is [`Feedback::Difference`] and both
    /// buffers have the same number of f32; as `all_reduce_encoded`.
    ///
    /// ```
    /// # use hexagram_logical::testing::spawn;
    /// # use hexagram_logical::{Buffer, DType, TransportKind};
    /// # use hexagram_logical::codec::MinMax8;
    /// # use hexagram_logical::encoding::{Encoding, Feedback};
    /// # use std::sync::Arc;
    /// let replicas = spawn(TransportKind::Thread, 2, |comm| {
    ///     let mut encoding = Encoding::new(Arc::new(MinMax8::default())).with_feedback(Feedback::Difference);
    ///     let x = Buffer::from_slice(&[comm.rank() as f32, 3.0])?;
    ///     let mut value = Buffer::from_slice(&x.host::<f32>()?)?;
    ///     let mut mean = Buffer::zeroed(DType::F32, 2)?;
    ///     comm.block_on(comm.mean_kept_encoded(&mut value, &mut mean, &mut encoding))?;
    ///     x.write_all()?.weighted_sum(&[
    ///         (1.0, None),
    ///         (1.0, Some(&mean.read_all()?)),
    ///         (-1.0, Some(&value.read_all()?)),
    ///     ])?;
    ///     let x = x.host::<f32>()?.to_vec();
    ///     Ok(x)
    /// })?;
    /// assert!(replicas.iter().all(|x| (x[0] - 0.5).abs() < 0.02 && (x[1] - 3.0).abs() < 0.02));
    /// assert!((replicas[0][0] + replicas[1][0] - 1.0).abs() < 1e-6);
    /// # Ok::<(), hexagram_logical::Error>(())
    /// ```
    pub fn mean_kept_encoded<'a>(
        &'a self,
        value: &'a mut Buffer,
        mean: &'a mut Buffer,
        encoding: &'a mut Encoding,
    ) -> Primitive<'a> {
        Box::pin(async move {
            encoding.expect_feedback("mean_kept_encoded", &[Feedback::Difference])?;
            mean.write_all()?.copy_from(&value.read_all()?)?;
            check(mean, ReduceOp::Mean, encoding)?;
            let fingerprint = fingerprint(mean, ReduceOp::Mean, encoding);
            let ranks = self.size();
            let owned = chunk(mean.len(), ranks, self.rank());
            let estimates = entry(encoding, "estimates", mean, ranks * owned.len())?;
            let stages = EncodedRoles::of(self, mean, ReduceOp::Mean, encoding)?.with_estimates(estimates);
            segments::run(self, fingerprint, mean, &stages).await?;
            encoding.state_mut().advance();
            let exact = entry(encoding, "mean", mean, owned.len())?;
            let exact = exact.read_all()?;
            mean.write(owned)?.weighted_sum(&[(1.0 - ranks as f64, None), (ranks as f64, Some(&exact))])?;
            let told = entry(encoding, super::WORKER_NAMES.difference, mean, mean.len())?;
            value.write_all()?.copy_from(&told.read_all()?)
        })
    }
}

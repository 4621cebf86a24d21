//! Clipping of gradients by their norm, before or after the hooks of the algorithm, as it [declares](Clipping).
//!
//! ```text
//! ‖g‖ ← √ Σ g²                       over all buckets, in f64, in the order of `device::kernels::sums`, then the plan's
//! after:    g ← g · min(1, c / ‖g‖)
//! before:   R ← √((1/n) Σⱼ ‖gⱼ‖²)                     all-reduce of 8 bytes
//!           gᵢ ← gᵢ · min(1, c / R)
//! ```
//!
//! After the hooks no communication is needed: ranks with the same gradients compute the same norm, bit for bit. R is
//! at least the norm of the mean gradient, and equal to it if all ranks have the same gradients. All ranks use the same
//! factor, so the mean keeps its direction. Clipping by the norm of each rank would move the minimum where data differ.
//!
//! Sources: Pascanu, Mikolov and Bengio, "On the difficulty of training recurrent neural networks", ICML 2013; R is the
//! one in the code of Lin et al., "Deep gradient compression", ICLR 2018.

use crate::engine::hooks::PassContents;
use crate::engine::plan::ModelPlan;
use crate::engine::precision::overflow::{self, not_finite, views};
use crate::engine::{DataParallel, hooks};
use crate::host_copy::on_host;
use crate::plugin::{Clipping, with_float};
use hexagram_logical::device::measure;
use hexagram_logical::{Buffer, Error, ReduceOp, Result};

impl DataParallel {
    /// Returns the maximum norm of the gradients, if they are clipped and the algorithm declares this clipping.
    fn limit(&self, clipping: Clipping) -> Option<f64> {
        self.options.clip_norm.filter(|_| self.algorithm.clipping() == clipping)
    }

    /// Returns true if gradients are clipped before the first hook.
    pub(super) fn clips_before(&self) -> bool {
        self.limit(Clipping::Together).is_some()
    }

    /// Returns true if gradients are clipped after all hooks.
    pub(super) fn clips_after(&self) -> bool {
        self.limit(Clipping::Outcome).is_some()
    }

    /// Clips the gradients of all ranks by one factor, if that is requested before the first hook. Returns true if they
    /// have overflowed instead, where an overflow is no error; they are NaN then.
    pub(super) fn clip_before(&mut self) -> Result<bool> {
        let Some(limit) = self.limit(Clipping::Together) else { return Ok(false) };
        let backward = hooks::lock(&self.backward);
        let own = match norm(backward.plan(), &backward.buffers()?) {
            Err(_) if self.options.skip_overflows => f64::INFINITY,
            norm => norm?,
        };
        drop(backward);
        let mut mean = [own.powi(2)];
        self.while_waiting(|engine| engine.comm.blocking().all_reduce(&mut mean, ReduceOp::Mean))?;
        let backward = hooks::lock(&self.backward);
        if self.options.skip_overflows && !mean[0].is_finite() {
            backward.buffers()?.into_iter().try_for_each(overflow::show)?;
            return Ok(true);
        }
        scale_down(&backward.buffers()?, mean[0].sqrt(), limit).map(|()| false)
    }

    /// Clips the gradients after the hooks, if requested.
    pub(super) fn clip_after(&mut self) -> Result<()> {
        let Some(limit) = self.limit(Clipping::Outcome) else { return Ok(()) };
        let backward = hooks::lock(&self.backward);
        let gradients = backward.buffers()?;
        // If replicas are identical, all ranks find it.
        if self.options.skip_overflows
            && self.algorithm.keeps_replicas_identical()
            && not_finite(&gradients)?.is_some()
        {
            drop(gradients);
            drop(backward);
            hooks::lock(&self.backward).set_results(PassContents::Overflowed);
            return Ok(());
        }
        scale_down(&gradients, norm(backward.plan(), &gradients)?, limit)
    }
}

/// Returns the norm of gradients, by bucket of the plan.
fn norm(plan: &ModelPlan, gradients: &[&Buffer]) -> Result<f64> {
    let norm = measure::squares(views(gradients)?)?.into_iter().sum::<f64>().sqrt();
    if norm.is_finite() { Ok(norm) } else { Err(no_norm(plan, gradients, norm)) }
}

/// Scales gradients by the factor that reduces `norm` to the limit.
fn scale_down(gradients: &[&Buffer], norm: f64, limit: f64) -> Result<()> {
    if norm <= limit {
        return Ok(());
    }
    gradients.iter().try_for_each(|g| g.write_all()?.scale(limit / norm))
}

fn no_norm(plan: &ModelPlan, gradients: &[&Buffer], norm: f64) -> Error {
    match strange_element(plan, gradients) {
        Err(error) => error,
        Ok(strange) => {
            let why = strange.unwrap_or_else(|| format!("their norm is {norm}"));
            let remedy = "find out why training diverges there, and lower the learning rate";
            Error::usage(format!("the gradients cannot be clipped: {why}"), remedy)
        }
    }
}

/// Returns the first element that is not finite.
fn strange_element(plan: &ModelPlan, gradients: &[&Buffer]) -> Result<Option<String>> {
    let Some((bucket, at)) = not_finite(gradients)? else { return Ok(None) };
    let one = on_host(&gradients[bucket].read(at..at + 1)?)?;
    let value = with_float!(one.dtype(), T => Ok(one.host::<T>()?[0].to_string()))?;
    let (name, index) = plan.name(bucket, at);
    Ok(Some(format!("element {index} of that of `{name}` is {value}")))
}

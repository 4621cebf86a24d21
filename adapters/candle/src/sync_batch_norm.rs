//! Batch normalization over the samples of all ranks: for batches too small for separate statistics.
//!
//! ```text
//! forward    μ, σ² ← mean and variance of each feature over all samples of all ranks;  x̂ = (x − μ) / √(σ² + ε)
//! backward   ∂x = (∂x̂ − mean(∂x̂) − x̂ · mean(∂x̂ · x̂)) / √(σ² + ε), the means again over all ranks
//! ```
//!
//! n ranks with batches of b then train like one rank with batches of n·b, unlike with `BatchNorm` of candle. Each pass
//! costs an all-reduce of two numbers per feature without overlap: the next layer needs them. Ranks may have different
//! numbers of samples. Source: Ioffe and Szegedy, "Batch normalization", ICML 2015; PyTorch's SyncBatchNorm.

use crate::model::range;
use candle_core::{CpuStorage, CustomOp1, DType, Layout, Result, Shape, Storage, Tensor, Var, bail};
use candle_nn::{BatchNormConfig, Init, ModuleT, VarBuilder};
use hexagram_algorithms::logical::{Communicator, ReduceOp};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};
use std::sync::atomic::{AtomicU64, Ordering};

/// Batch normalization over the samples of all ranks, otherwise like [`candle_nn::BatchNorm`]. All ranks must call it
/// in the same order. The backward pass must run on the thread of the forward pass.
#[derive(Clone)]
pub struct SyncBatchNorm {
    ranks: NumberedCommunicator,
    running_mean: Var,
    running_var: Var,
    weight_and_bias: Option<(Tensor, Tensor)>,
    eps: f64,
    momentum: f64,
}

/// Creates a [`SyncBatchNorm`] with the names and initial values of [`candle_nn::batch_norm()`]. Pass the `comm` of
/// [`Replica::build`](crate::Replica::build).
///
/// # Errors
/// If `features` is 0, ε or momentum is out of range, or `remove_mean` is false.
pub fn sync_batch_norm(
    comm: &Communicator,
    features: usize,
    config: impl Into<BatchNormConfig>,
    vb: VarBuilder<'_>,
) -> Result<SyncBatchNorm> {
    if features == 0 {
        bail!(
            "batch normalization of 0 features has nothing to normalize; give it those of its input, 1 or more"
        );
    }
    let BatchNormConfig { eps, remove_mean, affine, momentum } = config.into();
    if !(eps >= 0.0 && (0.0..=1.0).contains(&momentum) && remove_mean) {
        bail!("batch normalization needs remove_mean, an ε of 0 or more, and a momentum from 0 to 1");
    }
    let variable = |name: &str, value: f64| vb.get_with_hints(features, name, Init::Const(value));
    Ok(SyncBatchNorm {
        ranks: NumberedCommunicator::new(comm),
        running_mean: Var::from_tensor(&variable("running_mean", 0.0)?)?,
        running_var: Var::from_tensor(&variable("running_var", 1.0)?)?,
        weight_and_bias: if affine { Some((variable("weight", 1.0)?, variable("bias", 0.0)?)) } else { None },
        eps,
        momentum,
    })
}

impl ModuleT for SyncBatchNorm {
    /// Normalizes `x`, which is samples × features × anything.
    fn forward_t(&self, x: &Tensor, train: bool) -> Result<Tensor> {
        let features = self.running_mean.elem_count();
        if x.rank() < 2 || x.dim(1)? != features {
            bail!("{:?} are not samples × {features} features", x.shape());
        }
        let shape: Vec<usize> = (0..x.rank()).map(|at| if at == 1 { features } else { 1 }).collect();
        let normalized = if train { self.train(x)? } else { self.evaluate(x, &shape)? };
        match &self.weight_and_bias {
            None => Ok(normalized),
            Some((weight, bias)) => normalized
                .broadcast_mul(&weight.reshape(shape.as_slice())?)?
                .broadcast_add(&bias.reshape(shape.as_slice())?),
        }
    }
}

impl SyncBatchNorm {
    fn evaluate(&self, x: &Tensor, shape: &[usize]) -> Result<Tensor> {
        let mean = self.running_mean.as_detached_tensor().reshape(shape)?;
        let deviation = (self.running_var.as_detached_tensor().reshape(shape)? + self.eps)?.sqrt()?;
        x.broadcast_sub(&mean)?.broadcast_div(&deviation)
    }

    fn train(&self, x: &Tensor) -> Result<Tensor> {
        let given = x.dtype();
        let x = if given == DType::F64 { x.clone() } else { x.to_dtype(DType::F32)? }.contiguous()?;
        let features = self.running_mean.elem_count();
        let mut sums = by_feature(&x, &x, features)?;
        sums.push((x.elem_count() / features) as f64);
        sum(self.ranks.number, &mut sums)?;
        let count = sums[2 * features];
        if count < 2.0 {
            bail!("one sample of a feature has no variance; train on larger batches");
        }
        let mean: Vec<f64> = sums[..features].iter().map(|sum| sum / count).collect();
        let squares = sums[features..2 * features].iter().zip(&mean);
        let variance: Vec<f64> = squares.map(|(sum, mean)| (sum / count - mean * mean).max(0.0)).collect();
        self.remember(&self.running_mean, &mean, 1.0)?;
        self.remember(&self.running_var, &variance, count / (count - 1.0))?;
        let scale = variance.iter().map(|variance| 1.0 / (variance + self.eps).sqrt()).collect();
        x.apply_op1(Normalize { ranks: self.ranks.number, mean, scale, count })?.to_dtype(given)
    }

    /// Computes `running ← (1 − m) running + m · factor · now`.
    fn remember(&self, running: &Var, now: &[f64], factor: f64) -> Result<()> {
        let now = Tensor::new(now, running.device())?.to_dtype(running.dtype())?;
        let kept = (running.as_detached_tensor() * (1.0 - self.momentum))?;
        running.set(&(kept + (now * (self.momentum * factor))?)?)
    }
}

thread_local! {
    /// The communicators of the layers on this thread. Operations of candle must be `Send`, and a communicator is not,
    /// so an operation holds only its number.
    static OPEN: RefCell<BTreeMap<u64, Weak<Communicator>>> = const { RefCell::new(BTreeMap::new()) };
}

/// A communicator with a number.
#[derive(Clone)]
struct NumberedCommunicator {
    number: u64,
    _open: Rc<Communicator>,
}

impl NumberedCommunicator {
    fn new(comm: &Communicator) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let open = Rc::new(comm.clone());
        OPEN.with_borrow_mut(|all| {
            all.retain(|_, comm| comm.strong_count() > 0);
            all.insert(number, Rc::downgrade(&open));
        });
        NumberedCommunicator { number, _open: open }
    }
}

/// Computes `values ← Σ over ranks`.
fn sum(ranks: u64, values: &mut [f64]) -> Result<()> {
    let Some(comm) = OPEN.with_borrow(|all| all.get(&ranks).and_then(Weak::upgrade)) else {
        bail!(
            "the layer of this pass was dropped, or belongs to a different thread; keep it, and run the \
             backward pass on the thread of the forward pass"
        );
    };
    comm.blocking().all_reduce(values, ReduceOp::Sum).map_err(candle_core::Error::wrap)
}

/// x̂, with gradients through mean and variance.
struct Normalize {
    ranks: u64,
    mean: Vec<f64>,
    /// 1 / √(σ² + ε)
    scale: Vec<f64>,
    /// Samples of each feature, on all ranks.
    count: f64,
}

impl Normalize {
    fn normalized<T: Copy + Into<f64>>(&self, x: &[T], dims: &[usize], to: impl Fn(f64) -> T) -> Vec<T> {
        let features = features_of(dims, x.len());
        x.iter().zip(features).map(|(x, of)| to(((*x).into() - self.mean[of]) * self.scale[of])).collect()
    }
}

impl CustomOp1 for Normalize {
    fn name(&self) -> &'static str {
        "sync-batch-norm"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let range = range(layout);
        let dims = layout.dims();
        let result = match x {
            CpuStorage::F32(x) => CpuStorage::F32(self.normalized(&x[range], dims, |x| x as f32)),
            CpuStorage::F64(x) => CpuStorage::F64(self.normalized(&x[range], dims, |x| x)),
            _ => return Err(not_a_float()),
        };
        Ok((result, layout.shape().clone()))
    }

    fn bwd(&self, _: &Tensor, normalized: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
        let gradient = gradient.contiguous()?;
        let features = self.mean.len();
        let mut sums = by_feature(&gradient, normalized, features)?;
        sum(self.ranks, &mut sums)?;
        let shape: Vec<usize> = (0..gradient.rank()).map(|at| if at == 1 { features } else { 1 }).collect();
        let each = |values: Vec<f64>| -> Result<Tensor> {
            Tensor::new(values, gradient.device())?.to_dtype(gradient.dtype())?.reshape(shape.as_slice())
        };
        let means = |sums: &[f64]| sums.iter().map(|sum| sum / self.count).collect();
        let mean = each(means(&sums[..features]))?;
        let along = each(means(&sums[features..]))?;
        let through = gradient.broadcast_sub(&mean)?.sub(&normalized.broadcast_mul(&along)?)?;
        Ok(Some(through.broadcast_mul(&each(self.scale.clone())?)?))
    }
}

/// Returns Σ one, and then Σ one · other, of each feature, in f64, which is precise enough for squares without removing
/// the mean first.
fn by_feature(one: &Tensor, other: &Tensor, features: usize) -> Result<Vec<f64>> {
    let other = other.contiguous()?;
    let (left, at) = one.storage_and_layout();
    let (right, there) = other.storage_and_layout();
    let dims = at.dims();
    let there = range(there);
    let range = range(at);
    let mut sums = vec![0.0; 2 * features];
    match (&*left, &*right) {
        (Storage::Cpu(CpuStorage::F32(left)), Storage::Cpu(CpuStorage::F32(right))) => {
            add_up(&mut sums, &left[range], &right[there], dims);
        }
        (Storage::Cpu(CpuStorage::F64(left)), Storage::Cpu(CpuStorage::F64(right))) => {
            add_up(&mut sums, &left[range], &right[there], dims);
        }
        _ => return Err(not_a_float()),
    }
    Ok(sums)
}

fn add_up<T: Copy + Into<f64>>(sums: &mut [f64], one: &[T], other: &[T], dims: &[usize]) {
    let (plain, products) = sums.split_at_mut(sums.len() / 2);
    for ((one, other), of) in one.iter().zip(other).zip(features_of(dims, one.len())) {
        let one: f64 = (*one).into();
        plain[of] += one;
        products[of] += one * (*other).into();
    }
}

/// Returns the feature of each of `len` elements of a tensor of samples × features × anything.
fn features_of(dims: &[usize], len: usize) -> impl Iterator<Item = usize> {
    let features = dims[1];
    let inner = dims[2..].iter().product::<usize>().max(1);
    (0..len).map(move |at| at / inner % features)
}

fn not_a_float() -> candle_core::Error {
    candle_core::Error::msg("batches are normalized in f32 or f64, in host memory")
}

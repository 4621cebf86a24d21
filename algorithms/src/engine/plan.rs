//! The plan: the bucket and range of each parameter.
//!
//! Parameters are packed in the order in which a backward pass completes them: before the first pass, the reverse of
//! the listed order is assumed. A bucket has one element type; 16-bit parameters are converted and share buckets with
//! f32. Buckets are ordered by the parameter that completes them.

use super::EngineOptions;
use crate::plugin::Buckets;
use crate::plugin::Tensor;
use crate::record::does_not_fit;
use hexagram_logical::{Buffer, DType, Error, Result};
use std::borrow::Borrow;
use std::ops::Range;
use std::sync::Arc;

/// Trainable tensor of a model.
///
/// List the parameters that are trained together. The engine ignores all others (frozen ones, or those that
/// `_ddp_params_and_buffers_to_ignore` of PyTorch's DDP names): it does not communicate or step them, nor expect
/// gradients of them, and each rank keeps its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parameter {
    /// Name of the parameter in errors and checkpoints.
    pub name: String,
    /// Element type of the parameter and its gradient, a float type. In the engine, those of 16 bits are f32.
    pub dtype: DType,
    /// Sizes of the tensor, outermost first; none for a scalar.
    pub shape: Vec<usize>,
}

impl Parameter {
    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Returns true if there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Layout of the parameters of one bucket, which are communicated together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct BucketPlan {
    pub(super) dtype: DType,
    pub(super) len: usize,
    /// Indices of the parameters, with their ranges of elements in the bucket.
    pub(super) members: Vec<(usize, Range<usize>)>,
}

impl BucketPlan {
    fn bytes(&self) -> usize {
        self.len * self.dtype.size()
    }
}

/// Returns the element type that a parameter has in its bucket.
pub(super) fn wide(dtype: DType) -> DType {
    if dtype.is_half() { DType::F32 } else { dtype }
}

/// Returns the same error, with the element of a tensor instead of that of a bucket.
pub(super) fn name_tensor(tensors: &[Tensor], error: Error) -> Error {
    let Error::NotFinite { place, tensor: None, index, value, context } = error else { return error };
    let found = tensors.iter().find(|tensor| tensor.elements.contains(&index));
    let (start, tensor) =
        found.map_or((0, None), |tensor| (tensor.elements.start, Some(Arc::clone(&tensor.name))));
    Error::NotFinite { place, tensor, index: index - start, value, context }
}

/// Place of a value that belongs to a parameter: its bucket, and the range in it.
pub(super) type BucketRange = (usize, Range<usize>);

/// Moves data from some places to others, parameter by parameter.
pub(super) fn relocate(
    from: &[&Buffer],
    old: &[BucketRange],
    to: &[impl Borrow<Buffer>],
    new: &[BucketRange],
) -> Result<()> {
    for ((bucket, range), (new_bucket, new_range)) in old.iter().zip(new) {
        let source = from[*bucket].read(range.clone())?;
        to[*new_bucket].borrow().write(new_range.clone())?.copy_from(&source)?;
    }
    Ok(())
}

/// Plan as numbers, for a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PlanLayout {
    /// Indices of the parameters, in the expected order of completion.
    pub(super) order: Vec<i64>,
    /// Indices of the parameters, bucket by bucket.
    pub(super) members: Vec<i64>,
    /// Number of parameters of each bucket.
    pub(super) counts: Vec<i64>,
}

#[derive(Clone)]
pub(crate) struct ModelPlan {
    parameters: Arc<[Parameter]>,
    /// Indices of the parameters, in the expected order of completion.
    order: Arc<[usize]>,
    buckets: Vec<BucketPlan>,
    /// Bucket of each parameter, with its range of elements.
    places: Vec<BucketRange>,
}

impl ModelPlan {
    /// Makes the plan for a backward pass that completes the last parameter first.
    pub(super) fn new(parameters: Vec<Parameter>, options: &EngineOptions, cut: Buckets) -> Self {
        let order: Vec<usize> = (0..parameters.len()).rev().collect();
        Self::ordered(parameters.into(), &order, options, cut)
    }

    /// Makes the plan for a backward pass that completes parameters in this order.
    pub(super) fn ordered(
        parameters: Arc<[Parameter]>,
        order: &[usize],
        options: &EngineOptions,
        cut: Buckets,
    ) -> Self {
        let mut open: Vec<BucketPlan> = Vec::new();
        let mut closed: Vec<BucketPlan> = Vec::new();
        let (mut limit, later) = match cut {
            Buckets::BySize => (options.first_bucket_bytes, options.bucket_bytes),
            Buckets::Whole => (usize::MAX, usize::MAX),
        };
        for index in order.iter().copied() {
            let dtype = wide(parameters[index].dtype);
            let len = parameters[index].len();
            let at = open.iter().position(|bucket| bucket.dtype == dtype);
            let new = || BucketPlan { dtype, len: 0, members: Vec::new() };
            let mut bucket = at.map_or_else(new, |at| open.swap_remove(at));
            bucket.members.push((index, bucket.len..bucket.len + len));
            bucket.len += len;
            if bucket.bytes() < limit {
                open.push(bucket);
            } else {
                closed.push(bucket);
                limit = later;
            }
        }
        closed.append(&mut open);
        let mut position = vec![0; parameters.len()];
        order.iter().enumerate().for_each(|(at, index)| position[*index] = at);
        closed.sort_by_key(|bucket| bucket.members.last().map(|(index, _)| position[*index]));
        Self::of(parameters, order.into(), closed)
    }

    fn of(parameters: Arc<[Parameter]>, order: Arc<[usize]>, buckets: Vec<BucketPlan>) -> Self {
        let mut places = vec![(0, 0..0); parameters.len()];
        for (number, bucket) in buckets.iter().enumerate() {
            for (index, range) in &bucket.members {
                places[*index] = (number, range.clone());
            }
        }
        ModelPlan { parameters, order, buckets, places }
    }

    /// Returns the plan as numbers, for a checkpoint.
    pub(super) fn layout(&self) -> PlanLayout {
        let members = self.buckets.iter().flat_map(|bucket| bucket.members.iter().map(|(index, _)| *index));
        PlanLayout {
            order: self.order.iter().map(|index| *index as i64).collect(),
            members: members.map(|index| index as i64).collect(),
            counts: self.buckets.iter().map(|bucket| bucket.members.len() as i64).collect(),
        }
    }

    /// Returns the plan of the same parameters in saved buckets.
    pub(super) fn with_layout(&self, layout: &PlanLayout) -> Result<Self> {
        let wrong = || does_not_fit("has buckets that are not of this model");
        let members = self.permutation(&layout.members).ok_or_else(wrong)?;
        let order = self.permutation(&layout.order).ok_or_else(wrong)?;
        let mut rest = members.into_iter();
        let mut buckets = Vec::new();
        for count in &layout.counts {
            let count = usize::try_from(*count).map_err(|_| wrong())?;
            let mut bucket: Option<BucketPlan> = None;
            for index in rest.by_ref().take(count) {
                let dtype = wide(self.parameters[index].dtype);
                let len = self.parameters[index].len();
                let bucket = bucket.get_or_insert(BucketPlan { dtype, len: 0, members: Vec::new() });
                if bucket.dtype != dtype {
                    return Err(wrong());
                }
                bucket.members.push((index, bucket.len..bucket.len + len));
                bucket.len += len;
            }
            buckets.push(bucket.ok_or_else(wrong)?);
        }
        match rest.next() {
            None => Ok(Self::of(Arc::clone(&self.parameters), order.into(), buckets)),
            Some(_) => Err(wrong()),
        }
    }

    /// Returns these numbers as indices, if they contain each parameter once.
    fn permutation(&self, numbers: &[i64]) -> Option<Vec<usize>> {
        let mut seen = vec![false; self.parameters.len()];
        let mut indices = Vec::new();
        for number in numbers {
            let index = usize::try_from(*number).ok()?;
            if std::mem::replace(seen.get_mut(index)?, true) {
                return None;
            }
            indices.push(index);
        }
        (indices.len() == seen.len()).then_some(indices)
    }

    /// Returns the plan of the same parameters in another order or in other buckets.
    pub(super) fn reordered(&self, order: &[usize], options: &EngineOptions, cut: Buckets) -> Self {
        Self::ordered(Arc::clone(&self.parameters), order, options, cut)
    }

    /// Returns the plan of the same parameters for another algorithm.
    pub(super) fn recut(&self, options: &EngineOptions, cut: Buckets) -> Self {
        self.reordered(&self.order, options, cut)
    }

    pub(super) fn buckets(&self) -> &[BucketPlan] {
        &self.buckets
    }

    /// Returns the first parameter of each bucket that the forward pass uses; the smallest one is needed first.
    pub(super) fn urgency(&self) -> Vec<usize> {
        let first = |bucket: &BucketPlan| bucket.members.iter().map(|(index, _)| *index).min();
        self.buckets.iter().map(|bucket| first(bucket).unwrap_or_default()).collect()
    }

    /// Returns the names of the first and the last parameter of each bucket, in model order.
    pub(super) fn outlines(&self) -> Vec<String> {
        let outline = |bucket: &BucketPlan| {
            let mut members: Vec<usize> = bucket.members.iter().map(|(index, _)| *index).collect();
            members.sort_unstable();
            let name = |index: &usize| self.parameters[*index].name.clone();
            match (members.first().map(name), members.last().map(name)) {
                (Some(first), Some(last)) if first != last => format!("{first} to {last}"),
                (first, _) => first.unwrap_or_default(),
            }
        };
        self.buckets.iter().map(outline).collect()
    }

    /// Returns the tensors of each bucket.
    pub(super) fn tensors(&self) -> Vec<Arc<[Tensor]>> {
        let tensor = |(index, range): &(usize, Range<usize>)| Tensor {
            name: Arc::from(self.parameters[*index].name.as_str()),
            shape: self.parameters[*index].shape.clone(),
            elements: range.clone(),
        };
        self.buckets.iter().map(|bucket| bucket.members.iter().map(tensor).collect()).collect()
    }

    /// Moves the data in the buckets of this plan to the buckets of another plan of the same parameters.
    pub(super) fn relocate(&self, from: &[&Buffer], other: &ModelPlan, to: &[Buffer]) -> Result<()> {
        relocate(from, &self.places, to, &other.places)
    }

    /// Returns the places for `len` elements per parameter, packed like the parameters, and the total for each bucket.
    pub(super) fn packed(&self, len: impl Fn(&Tensor) -> usize) -> (Vec<BucketRange>, Vec<usize>) {
        let mut places = vec![(0, 0..0); self.parameters.len()];
        let mut lens = Vec::new();
        for (number, (bucket, tensors)) in self.buckets.iter().zip(self.tensors()).enumerate() {
            let mut end = 0;
            for ((index, _), tensor) in bucket.members.iter().zip(&*tensors) {
                let start = end;
                end += len(tensor);
                places[*index] = (number, start..end);
            }
            lens.push(end);
        }
        (places, lens)
    }

    pub(super) fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    pub(super) fn place(&self, parameter: usize) -> Result<BucketRange> {
        self.places.get(parameter).cloned().ok_or_else(|| {
            let what = format!("parameter {parameter} does not exist among {}", self.places.len());
            Error::usage(what, "use the order in which the parameters were listed")
        })
    }

    pub(super) fn parameter(&self, parameter: usize) -> Result<&Parameter> {
        self.place(parameter).map(|_| &self.parameters[parameter])
    }

    /// Returns the name of the parameter to which an element of a bucket belongs, and its index in the parameter.
    pub(super) fn name(&self, bucket: usize, element: usize) -> (&str, usize) {
        let members = &self.buckets[bucket].members;
        let found = members.iter().find(|(_, range)| range.contains(&element));
        found.map_or(("", element), |(index, range)| (&self.parameters[*index].name, element - range.start))
    }

    /// Refuses parameters that cannot have gradients.
    pub(super) fn check(&self) -> Result<()> {
        match self.parameters.iter().find(|parameter| !parameter.dtype.is_float()) {
            None => Ok(()),
            Some(Parameter { name, dtype, .. }) => {
                let remedy = "leave it out of the list; buffers are synchronized with synchronize_buffers";
                Err(Error::usage(format!("parameter `{name}` of {dtype} cannot be trained"), remedy))
            }
        }
    }
}

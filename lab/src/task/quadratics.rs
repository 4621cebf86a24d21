//! Quadratics with a known optimum: the task that shows bias. Samples have one of ten labels, and each label has its
//! own curvatures and minimum. So ranks with different labels pull in different directions, and none of them to the
//! common optimum.
//!
//! ```text
//! f_s(x) = ½ Σ_j a_lj (x_j − b_sj)²      l: label of s;  a_lj: uniform in [0.25, 4];        b_sj = c_lj + ξ_sj
//! x*_j   = Σ_s a_lj b_sj / Σ_s a_lj      c_lj, ξ_sj: normal with deviations 1 and σ
//! ```

use super::{GradientReady, ModelEvaluation, ModelValues, Task, parameter};
use crate::random::Random;
use hexagram::{Error, Parameter, Result};

/// Number of labels.
const LABELS: usize = 10;
/// Shapes of the parameters: a matrix, for algorithms that treat matrices differently, and a vector.
const SHAPES: [(&str, [usize; 2]); 2] = [("matrix", [12, 8]), ("vector", [1, 24])];
/// Number of elements of all parameters.
const ELEMENTS: usize = 12 * 8 + 24;
/// Number of samples: 4, 8 and 25 ranks get equal shares, so that the mean of the ranks' losses is the loss of all
/// samples.
const SAMPLES: usize = 600;

/// Quadratics with different curvatures and minima by label.
#[derive(Debug)]
pub struct Quadratics {
    name: &'static str,
    batch: Option<usize>,
    labels: Vec<usize>,
    /// Curvature of each label and element.
    curvatures: Vec<Vec<f64>>,
    /// Minimum of each sample, by element.
    minima: Vec<Vec<f64>>,
    optimum: Vec<f64>,
    least: f64,
}

impl Quadratics {
    /// Creates the task without noise: a rank's batch is all its samples.
    ///
    /// # Errors
    /// As [`noisy`](Self::noisy).
    pub fn new(seed: u64) -> Result<Self> {
        Ok(Quadratics { name: "quadratics", batch: None, ..Self::noisy(seed)? })
    }

    /// Creates the task with batches of 4 samples.
    ///
    /// # Errors
    /// [`Error::Usage`] if the seed has more than 32 bits.
    pub fn noisy(seed: u64) -> Result<Self> {
        if seed > u64::from(u32::MAX) {
            return Err(Error::usage(format!("the seed {seed} has more than 32 bits"), "use a smaller one"));
        }
        let mut random = Random::new(seed);
        let labels: Vec<usize> = (0..SAMPLES).map(|sample| sample % LABELS).collect();
        let per_label = |draw: &mut dyn FnMut() -> f64| -> Vec<Vec<f64>> {
            (0..LABELS).map(|_| (0..ELEMENTS).map(|_| draw()).collect()).collect()
        };
        let curvatures = per_label(&mut || random.between(0.25, 4.0));
        let centers = per_label(&mut || random.normal());
        let minima = labels
            .iter()
            .map(|&label| centers[label].iter().map(|center| center + NOISE * random.normal()).collect())
            .collect();
        Ok(Self::around(labels, curvatures, minima))
    }

    /// Finds the optimum, and the loss there.
    fn around(labels: Vec<usize>, curvatures: Vec<Vec<f64>>, minima: Vec<Vec<f64>>) -> Self {
        let optimum = (0..ELEMENTS)
            .map(|at| {
                let weights = || labels.iter().map(|&label| curvatures[label][at]);
                let weighed = weights().zip(&minima).map(|(weight, minimum)| weight * minimum[at]);
                weighed.sum::<f64>() / weights().sum::<f64>()
            })
            .collect();
        let batch = Some(4);
        let mut task =
            Quadratics { name: "noisy-quadratics", batch, labels, curvatures, minima, optimum, least: 0.0 };
        task.least = task.loss(&task.optimum);
        task
    }

    /// Returns the loss at the optimum, which is above 0, as samples differ.
    pub fn least(&self) -> f64 {
        self.least
    }

    /// Returns the loss over all samples.
    fn loss(&self, x: &[f64]) -> f64 {
        let of = |(label, minimum): (&usize, &Vec<f64>)| -> f64 {
            let curvature = &self.curvatures[*label];
            (0..ELEMENTS).map(|at| curvature[at] * (x[at] - minimum[at]).powi(2)).sum::<f64>() / 2.0
        };
        self.labels.iter().zip(&self.minima).map(of).sum::<f64>() / self.labels.len() as f64
    }
}

/// Deviation σ of the samples of a label.
const NOISE: f64 = 0.5;

impl Task for Quadratics {
    fn name(&self) -> &str {
        self.name
    }

    fn parameters(&self) -> Vec<Parameter> {
        SHAPES.map(|(name, shape)| parameter(name, &shape)).to_vec()
    }

    fn initial(&self, _: u64) -> ModelValues {
        SHAPES.map(|(_, [rows, columns])| vec![0.0; rows * columns]).to_vec()
    }

    fn labels(&self) -> &[usize] {
        &self.labels
    }

    fn batch(&self) -> Option<usize> {
        self.batch
    }

    fn gradient(
        &self,
        values: &ModelValues,
        samples: &[usize],
        ready: &mut GradientReady<'_>,
    ) -> Result<f64> {
        let x = values.concat();
        let mut gradient = vec![0.0f64; ELEMENTS];
        let mut loss = 0.0;
        for &sample in samples {
            let curvature = &self.curvatures[self.labels[sample]];
            let minimum = &self.minima[sample];
            for at in 0..ELEMENTS {
                let away = f64::from(x[at]) - minimum[at];
                gradient[at] += curvature[at] * away;
                loss += curvature[at] * away * away / 2.0;
            }
        }
        let count = samples.len() as f64;
        let gradient: Vec<f32> = gradient.into_iter().map(|entry| (entry / count) as f32).collect();
        let (matrix, vector) = gradient.split_at(values[0].len());
        ready(1, vector)?;
        ready(0, matrix)?;
        Ok(loss / count)
    }

    fn evaluate(&self, values: &ModelValues) -> ModelEvaluation {
        let x: Vec<f64> = values.concat().into_iter().map(f64::from).collect();
        let distance = x.iter().zip(&self.optimum).map(|(x, best)| (x - best).powi(2)).sum::<f64>().sqrt();
        ModelEvaluation { loss: self.loss(&x) - self.least, accuracy: None, distance: Some(distance) }
    }
}

//! Gradients against finite differences, and optima against their known values.

use super::*;

fn tasks() -> Vec<Box<dyn Task>> {
    vec![
        Box::new(Quadratics::new(3).unwrap()),
        Box::new(Quadratics::noisy(3).unwrap()),
        Box::new(Digits::new().unwrap()),
        Box::new(TextTask::new()),
        Box::new(LinesTask::new(LinesText::embedded(), std::time::Duration::ZERO)),
    ]
}

fn gradient(task: &dyn Task, values: &ModelValues, samples: &[usize]) -> (ModelValues, f64) {
    let mut found: Vec<Option<Vec<f32>>> = vec![None; values.len()];
    let mut ready = |parameter: usize, gradient: &[f32]| {
        assert!(found[parameter].is_none(), "parameter {parameter} is ready twice");
        found[parameter] = Some(gradient.to_vec());
        Ok(())
    };
    let loss = task.gradient(values, samples, &mut ready).unwrap();
    (found.into_iter().map(Option::unwrap).collect(), loss)
}

/// Along each of some directions in each parameter, the loss changes as the gradient predicts.
#[test]
fn gradients_are_those_of_finite_differences() {
    for task in tasks() {
        let mut values = task.initial(1);
        // Away from the zeros and ones at which a training starts.
        let mut random = crate::random::Random::new(9);
        values.iter_mut().flatten().for_each(|x| *x += 0.1 * random.normal() as f32);
        let samples = [1, 5, 11, 30];
        let (gradient, _) = gradient(&*task, &values, &samples);
        for (at, of_parameter) in gradient.iter().enumerate() {
            for _ in 0..3 {
                let direction: Vec<f32> =
                    (0..of_parameter.len()).map(|_| random.normal() as f32 * 0.5).collect();
                let loss_at = |step: f32| {
                    let mut moved = values.clone();
                    crate::arithmetic::add_scaled(&mut moved[at], step, &direction);
                    self::gradient(&*task, &moved, &samples).1
                };
                let step = 3e-4;
                let found = (loss_at(step) - loss_at(-step)) / (2.0 * f64::from(step));
                let said = f64::from(crate::arithmetic::dot(of_parameter, &direction));
                let size = 0.2 + found.abs().max(said.abs());
                assert!((found - said).abs() < 0.02 * size, "{} {at}: {found} for {said}", task.name());
            }
        }
    }
}

#[test]
fn shapes_values_and_labels_fit_each_other() {
    for task in tasks() {
        let sizes: Vec<usize> = task.parameters().iter().map(Parameter::len).collect();
        assert_eq!(task.initial(0).iter().map(Vec::len).collect::<Vec<_>>(), sizes);
        assert_ne!(task.labels().len(), 0);
        let known = task.evaluate(&task.initial(0));
        assert!(known.accuracy.is_none_or(|accuracy| accuracy < 0.3), "{known:?}");
    }
}

#[test]
fn the_gradient_vanishes_at_the_optimum() {
    let task = Quadratics::new(5).unwrap();
    let all: Vec<usize> = (0..task.labels().len()).collect();
    let mut values = task.initial(0);
    for _ in 0..400 {
        let (gradient, _) = gradient(&task, &values, &all);
        values.iter_mut().zip(&gradient).for_each(|(x, g)| crate::arithmetic::add_scaled(x, -0.3, g));
    }
    let reached = task.evaluate(&values);
    assert!(reached.loss.abs() < 1e-9 && reached.distance.unwrap() < 1e-4, "{reached:?}");
}

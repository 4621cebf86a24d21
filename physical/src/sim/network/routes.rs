//! Routes: the path of messages from one rank of a cluster to another.
//!
//! The number of the destination host selects one of several shortest routes: at each place where routes part, by the
//! remainder of a division, and by the quotient at the next. In a fat tree the routes to different hosts thus part
//! evenly over its links, and those from all hosts to equally distant others do not meet (Zahavi et al., "Optimized
//! InfiniBand fat-tree routing for shift all-to-all communication patterns", 2010).

use crate::sim::cluster::{Cluster, Vertex};
use std::collections::{HashMap, VecDeque};

/// Path of messages from one rank to another.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Route {
    /// Links, and true for one that is followed against its direction.
    pub(crate) links: Vec<(usize, bool)>,
}

/// Finder of routes, which remembers them between hosts.
pub(crate) struct Routes {
    hosts: Vec<usize>,
    /// For each place: its links, whether they are followed against their direction, and their other ends.
    from: Vec<Vec<(usize, bool, Vertex)>>,
    between: HashMap<(usize, usize), Route>,
}

impl Routes {
    pub(crate) fn new(cluster: &Cluster) -> Self {
        let mut from = vec![Vec::new(); cluster.places()];
        for (number, (a, b, _)) in cluster.ends().iter().enumerate() {
            from[*a as usize].push((number, false, *b));
            from[*b as usize].push((number, true, *a));
        }
        Routes { hosts: cluster.hosts().to_vec(), from, between: HashMap::new() }
    }

    /// Returns the route from one rank to another: none to itself; over the links of the host within one host; otherwise that
    /// from host to host, since hosts handle the links of their ranks. It is empty if no route exists.
    pub(crate) fn route(&mut self, from: usize, to: usize) -> Route {
        let ranks = self.hosts.len();
        let here = self.hosts[from];
        let there = self.hosts[to];
        if from == to {
            return Route::default();
        }
        if here == there {
            return self.shortest(from as Vertex, to as Vertex, to);
        }
        if let Some(route) = self.between.get(&(here, there)) {
            return route.clone();
        }
        let route = self.shortest((ranks + here) as Vertex, (ranks + there) as Vertex, there);
        self.between.insert((here, there), route.clone());
        route
    }

    /// Returns a route with the fewest links; `number` selects one of several.
    fn shortest(&self, from: Vertex, to: Vertex, number: usize) -> Route {
        let distances = self.distances(from, to);
        let mut links = Vec::new();
        let mut place = from;
        let mut number = number;
        while let Some(far) = distances[place as usize].filter(|far| *far > 0) {
            let nearer = |(_, _, next): &&(usize, bool, Vertex)| distances[*next as usize] == Some(far - 1);
            let ways: Vec<_> = self.from[place as usize].iter().filter(nearer).collect();
            let (link, back, next) = *ways[number % ways.len()];
            number /= ways.len();
            links.push((link, back));
            place = next;
        }
        Route { links }
    }

    /// Returns the distance of each place to `to`, in links, up to that of `from`; `None` for places that are farther.
    fn distances(&self, from: Vertex, to: Vertex) -> Vec<Option<u32>> {
        let mut distances = vec![None; self.from.len()];
        distances[to as usize] = Some(0);
        let mut queue = VecDeque::from([(to, 0)]);
        while let Some((place, far)) = queue.pop_front() {
            if place == from {
                break;
            }
            for (_, _, next) in &self.from[place as usize] {
                if distances[*next as usize].is_none() {
                    distances[*next as usize] = Some(far + 1);
                    queue.push_back((*next, far + 1));
                }
            }
        }
        distances
    }
}

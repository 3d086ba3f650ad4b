//! The network between simulated nodes: how long messages take, and which do not come through.
//!
//! Gossip is lost as datagrams are; forwards are streams, which a loss delays. A cut has a
//! direction, and a stream needs both.

use std::collections::BTreeSet;

use fastrand::Rng;
use infergate_core::Millis;

/// A stream repeats what was lost after so long.
const REPEATED_AFTER: Millis = Millis(200);

/// Links between nodes.
#[derive(Default)]
pub struct Net {
    /// Directions in which nothing comes through.
    cut: BTreeSet<(usize, usize)>,
    /// Share of messages lost.
    pub loss: f64,
    /// Further delay, uniformly up to this.
    pub jitter: Millis,
}

impl Net {
    pub fn cut(&mut self, from: usize, to: usize) {
        self.cut.insert((from, to));
    }

    pub fn heal(&mut self) {
        self.cut.clear();
    }

    /// Returns whether a stream between the two works.
    pub fn connects(&self, one: usize, other: usize) -> bool {
        !self.cut.contains(&(one, other)) && !self.cut.contains(&(other, one))
    }

    /// Returns the one-way delay without loss. Sites lie on a line, eight milliseconds apart.
    pub fn way(&self, sites: (usize, usize), random: &mut Rng) -> Millis {
        let distance = sites.0.abs_diff(sites.1) as u64;
        Millis(1 + 8 * distance + random.u64(..=self.jitter.0))
    }

    /// Latency of a datagram; none when it is lost.
    pub fn datagram(
        &self,
        nodes: (usize, usize),
        sites: (usize, usize),
        random: &mut Rng,
    ) -> Option<Millis> {
        let lost = self.cut.contains(&nodes) || random.f64() < self.loss;
        (!lost).then(|| self.way(sites, random))
    }

    /// Latency of a message on a stream that works.
    pub fn stream(&self, sites: (usize, usize), random: &mut Rng) -> Millis {
        let mut way = self.way(sites, random);
        // Ten losses in a row and more are a cut.
        for _ in 0..10 {
            if random.f64() >= self.loss {
                break;
            }
            way = way + REPEATED_AFTER;
        }
        way
    }
}

//! Engines that serve one model: several behind the gateways of one server, or one server for each of them behind a
//! load balancer.

use anyhow::bail;

use super::flags::{Settings, Value};

/// The engines of this server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replicas {
    /// How many there are here.
    pub engines: u32,
    /// Data-parallel rank of the first.
    pub first: u32,
}

impl Replicas {
    /// One engine, alone.
    pub const ONE: Self = Self { engines: 1, first: 0 };

    /// What the flags say.
    pub fn read(settings: &Settings) -> anyhow::Result<Self> {
        let size = settings.number("data-parallel-size").unwrap_or(1);
        let local = settings.number::<u32>("data-parallel-size-local");
        let rank = settings.number::<u32>("data-parallel-rank");
        let external = matches!(settings.get("data-parallel-external-lb"), Some(Value::Bool(true)));
        match (rank, external) {
            // A rank says that others have the other engines.
            (Some(rank), _) if rank > 0 || external => Self::behind_a_load_balancer(rank, size, local),
            (None, true) => {
                bail!("--data-parallel-external-lb needs --data-parallel-rank, the number of this server's engine")
            }
            _ => Self::here(settings, size, local),
        }
    }

    fn behind_a_load_balancer(rank: u32, size: u32, local: Option<u32>) -> anyhow::Result<Self> {
        if rank >= size {
            bail!("--data-parallel-rank {rank}: --data-parallel-size {size} has the ranks 0 to {}", size - 1);
        }
        if let Some(local) = local.filter(|local| *local != 1) {
            bail!("--data-parallel-size-local {local}: with --data-parallel-external-lb a server has one engine");
        }
        Ok(Self { engines: 1, first: rank })
    }

    fn here(settings: &Settings, size: u32, local: Option<u32>) -> anyhow::Result<Self> {
        if let Some(local) = local.filter(|local| *local != size) {
            bail!(
                "--data-parallel-size-local {local}: all --data-parallel-size {size} engines of a server are on its \
                 machine; for engines on several, start a server for each, with --data-parallel-external-lb and its \
                 --data-parallel-rank, behind a load balancer"
            );
        }
        let nodes = settings.number("nnodes").unwrap_or(1_u32);
        if size > 1 && nodes > 1 {
            bail!(
                "--data-parallel-size {size} with --nnodes {nodes}: the engines of a server are on one machine; for \
                 engines that span nodes, start a server for each, with --data-parallel-external-lb and its \
                 --data-parallel-rank, behind a load balancer"
            );
        }
        Ok(Self { engines: size, first: 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::flags::parse;

    fn read(line: &str) -> Result<(u32, u32), String> {
        let words: Vec<_> = line.split_whitespace().map(str::to_owned).collect();
        let read = Replicas::read(&parse(&words).unwrap());
        read.map(|replicas| (replicas.engines, replicas.first)).map_err(|error| error.to_string())
    }

    #[test]
    fn engines_are_here_or_behind_a_load_balancer() {
        assert_eq!(read(""), Ok((1, 0)));
        assert_eq!(read("-dp 4"), Ok((4, 0)));
        assert_eq!(read("--data-parallel-size 4 --data-parallel-size-local 4"), Ok((4, 0)));
        assert_eq!(read("-dp 4 --data-parallel-external-lb --data-parallel-rank 0"), Ok((1, 0)));
        assert_eq!(read("-dp 4 --data-parallel-rank 3"), Ok((1, 3)));
    }

    #[test]
    fn what_cannot_be_is_refused_with_what_can() {
        let refused = |line: &str, words: &[&str]| {
            let error = read(line).unwrap_err();
            assert!(words.iter().all(|word| error.contains(word)), "{error}");
        };
        refused("-dp 2 --data-parallel-external-lb", &["--data-parallel-rank"]);
        refused("-dp 2 --data-parallel-rank 2", &["0 to 1"]);
        refused("-dp 2 --data-parallel-rank 1 --data-parallel-size-local 2", &["one engine"]);
        refused("-dp 4 --data-parallel-size-local 2", &["--data-parallel-external-lb"]);
        refused("-dp 2 --nnodes 2", &["--nnodes 2", "--data-parallel-external-lb"]);
    }
}

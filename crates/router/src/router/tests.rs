//! Choices, and what is counted for them.

use proptest::prelude::*;

use super::*;

const BLOCK: u32 = 16;

fn ready(policy: Policy, engines: usize) -> Router {
    let mut router = Router::new(policy, engines);
    (0..engines).for_each(|engine| router.set_state(engine, State::Ready));
    router
}

fn key(number: u64) -> RequestKey {
    RequestKey { gateway: 1, number }
}

/// A prompt of these blocks and one token more.
fn prompt(number: u64, blocks: &[u64]) -> Arrival<'_> {
    let tokens = blocks.len() as u32 * BLOCK + 1;
    Arrival { key: key(number), tokens, blocks, block_size: BLOCK, session: None, rank: None }
}

/// Names of the blocks of a prefix of 2,048 tokens.
fn prefix(number: u64) -> Vec<u64> {
    (0..128).map(|block| number << 32 | block).collect()
}

#[test]
fn round_robin_takes_turns_among_those_that_are_ready() {
    let mut router = ready(Policy::RoundRobin, 3);
    let order =
        |router: &mut Router| (0..4).map(|number| router.choose(prompt(number, &[])).unwrap()).collect::<Vec<_>>();
    assert_eq!(order(&mut router), [0, 1, 2, 0]);
    router.set_state(1, State::Draining);
    assert_eq!(order(&mut router), [2, 0, 2, 0]);
}

#[test]
fn the_least_loaded_has_the_fewest_tokens_to_compute() {
    let mut router = ready(Policy::LeastLoaded, 2);
    let long = prefix(7);
    assert_eq!(router.choose(prompt(1, &long)), Ok(0));
    // Short ones go to the other, until their number outweighs what waits for the long prompt.
    let short: Vec<_> = (2..30).map(|number| router.choose(prompt(number, &[])).unwrap()).collect();
    assert!(short.iter().all(|engine| *engine == 1), "{short:?}");
    router.started(&key(1));
    assert_eq!(router.choose(prompt(40, &[])), Ok(0), "the long prompt waits no longer");
    let tied = prompt(41, &long);
    assert_eq!(router.choose(tied), Ok(0), "caches do not count");
}

#[test]
fn a_prefix_goes_where_it_is_cached_until_the_queue_outweighs_it() {
    let mut router = ready(Policy::Prefix, 2);
    let cached = prefix(1);
    router.blocks_changed(1, &[], &cached);
    let chosen: Vec<_> = (0..80).map(|number| router.choose(prompt(number, &cached)).unwrap()).collect();
    let first_elsewhere = chosen.iter().position(|engine| *engine == 0).expect("a load escape");
    // Twice 2,048 tokens against 64 and one token for each request.
    assert_eq!(first_elsewhere, 64);
    router.blocks_changed(1, &cached, &[]);
    (0..80).for_each(|number| router.ended(&key(number)));
    assert_eq!(router.engines[1].cached(&cached), 0);
}

#[test]
fn what_is_about_to_be_computed_counts_as_cached() {
    let mut router = ready(Policy::Prefix, 4);
    let shared = prefix(1);
    let chosen: Vec<_> = (0..20).map(|number| router.choose(prompt(number, &shared)).unwrap()).collect();
    assert!(chosen.iter().all(|engine| *engine == chosen[0]), "{chosen:?}");
    let other = prefix(2);
    assert_ne!(router.choose(prompt(50, &other)), Ok(chosen[0]), "another prefix goes to an idle engine");
}

#[test]
fn only_a_prefix_from_the_first_block_on_counts() {
    let mut router = ready(Policy::Prefix, 2);
    router.blocks_changed(0, &[], &[1, 2, 4]);
    router.blocks_changed(1, &[], &[2, 3, 4]);
    assert_eq!(router.engines[0].cached(&[1, 2, 3, 4]), 2);
    assert_eq!(router.engines[1].cached(&[1, 2, 3, 4]), 0);
    router.clear_blocks(0);
    assert_eq!(router.engines[0].cached(&[1, 2, 3, 4]), 0);
}

#[test]
fn a_rank_is_honoured_or_refused() {
    let mut router = ready(Policy::Prefix, 2);
    let ranked = |number, rank| Arrival { rank: Some(rank), ..prompt(number, &[]) };
    assert_eq!((router.choose(ranked(1, 1)), router.choose(ranked(2, 1))), (Ok(1), Ok(1)));
    assert_eq!(router.choose(ranked(3, 2)), Err(NoEngine::NoSuchRank { rank: 2, engines: 2 }));
    assert!(NoEngine::NoSuchRank { rank: 2, engines: 2 }.to_string().contains("0 to 1"));
    router.lost(1);
    assert_eq!(router.choose(ranked(4, 1)), Err(NoEngine::RankAway { rank: 1 }));
    router.set_state(0, State::Draining);
    assert_eq!(router.choose(ranked(5, 0)), Err(NoEngine::RankAway { rank: 0 }));
}

#[test]
fn a_session_stays_where_it_is() {
    let mut router = ready(Policy::RoundRobin, 4);
    let names: Vec<String> = (0..64).map(|number| format!("session-{number}")).collect();
    let all = |router: &mut Router| {
        let choose = |(number, name): (usize, &String)| {
            router.choose(Arrival { session: Some(name), ..prompt(number as u64, &[]) }).unwrap()
        };
        names.iter().enumerate().map(choose).collect::<Vec<_>>()
    };
    let before = all(&mut router);
    assert_eq!(all(&mut router), before);
    for engine in 0..4 {
        assert!(before.iter().filter(|chosen| **chosen == engine).count() > 4, "sessions are spread: {before:?}");
    }
    router.lost(2);
    let after = all(&mut router);
    for (before, after) in before.iter().zip(&after) {
        assert!(if *before == 2 { *after != 2 } else { after == before }, "only those of the lost engine move");
    }
    router.set_state(2, State::Ready);
    assert_eq!(all(&mut router), before);
}

#[test]
fn one_that_cannot_compute_is_taken_only_where_none_can() {
    let mut router = Router::new(Policy::Prefix, 2);
    assert_eq!(router.choose(prompt(1, &[])), Err(NoEngine::AllAway));
    router.set_state(0, State::Waiting);
    assert_eq!(router.choose(prompt(2, &[])), Ok(0));
    router.set_state(1, State::Ready);
    assert_eq!(router.choose(prompt(3, &[])), Ok(1));
    assert_eq!(router.choose(prompt(4, &[])), Ok(1));
}

#[test]
fn an_engine_that_is_lost_gives_up_its_own_requests() {
    let mut router = ready(Policy::RoundRobin, 2);
    for number in 0..6 {
        router.choose(prompt(number, &[])).unwrap();
    }
    let mut lost: Vec<_> = router.lost(1).iter().map(|key| key.number).collect();
    lost.sort_unstable();
    assert_eq!(lost, [1, 3, 5]);
    assert_eq!((router.engine_of(&key(0)), router.engine_of(&key(1)), router.len()), (Some(0), None, 3));
    assert_eq!(router.state(1), State::Away);
}

#[test]
fn requests_of_which_only_the_engine_knows_count() {
    let mut router = ready(Policy::LeastLoaded, 2);
    router.reported(0, 5);
    let chosen: Vec<_> = (0..5).map(|number| router.choose(prompt(number, &[])).unwrap()).collect();
    assert_eq!(chosen, [1; 5]);
}

/// Something that happens to a router.
#[derive(Clone, Debug)]
enum Call {
    Choose { number: u64, prefix: u64, blocks: usize, session: bool, rank: Option<u32> },
    Started(u64),
    Ended(u64),
    GatewayGone(u64),
    Lost(usize),
    State(usize, State),
    Blocks { engine: usize, prefix: u64, stored: bool },
}

fn call() -> impl Strategy<Value = Call> {
    let state = prop_oneof![Just(State::Waiting), Just(State::Ready), Just(State::Draining)];
    let choose = (0u64..40, 0u64..4, 0usize..6, any::<bool>(), prop::option::of(0u32..4));
    prop_oneof![
        6 => choose.prop_map(|(number, prefix, blocks, session, rank)| {
            Call::Choose { number, prefix, blocks, session: session && number % 4 == 0, rank }
        }),
        2 => (0u64..40).prop_map(Call::Started),
        3 => (0u64..40).prop_map(Call::Ended),
        1 => (0u64..3).prop_map(Call::GatewayGone),
        1 => (0usize..3).prop_map(Call::Lost),
        2 => (0usize..3, state).prop_map(|(engine, state)| Call::State(engine, state)),
        1 => (0usize..3, 0u64..4, any::<bool>()).prop_map(|(engine, prefix, stored)| {
            Call::Blocks { engine, prefix, stored }
        }),
    ]
}

/// The request's name: gateways share the numbers.
fn named(number: u64) -> RequestKey {
    RequestKey { gateway: number % 3, number }
}

/// What is counted is what is in flight, and engines get only what they can take.
fn check(router: &Router) -> Result<(), TestCaseError> {
    for (index, engine) in router.engines.iter().enumerate() {
        let here: Vec<_> = router.requests.values().filter(|placed| placed.engine == index).collect();
        prop_assert_eq!(engine.requests as usize, here.len());
        let queued: u64 = here.iter().filter(|placed| !placed.started).map(|placed| placed.uncached).sum();
        prop_assert_eq!(engine.queued_tokens, queued);
        prop_assert!(engine.state != State::Away || here.is_empty(), "a lost engine has requests");
        prop_assert!(!here.is_empty() || engine.expects_nothing());
    }
    Ok(())
}

fn choose(router: &mut Router, arrival: Arrival<'_>) -> Result<(), TestCaseError> {
    let before: Vec<State> = router.engines.iter().map(|engine| engine.state).collect();
    let any_ready = before.contains(&State::Ready);
    match router.choose(arrival) {
        Ok(engine) => {
            prop_assert!(matches!(before[engine], State::Ready | State::Waiting));
            prop_assert!(before[engine] == State::Ready || !any_ready || arrival.rank.is_some());
            prop_assert!(arrival.rank.is_none_or(|rank| rank as usize == engine));
            prop_assert_eq!(router.engine_of(&arrival.key), Some(engine));
        }
        Err(NoEngine::AllAway) => prop_assert!(!before.contains(&State::Waiting) && !any_ready),
        Err(NoEngine::RankAway { rank }) => {
            prop_assert!(matches!(before[rank as usize], State::Away | State::Draining));
        }
        Err(NoEngine::NoSuchRank { rank, engines }) => prop_assert!(rank as usize >= engines),
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever happens in whatever order, counts are those of the requests in flight, and nothing stays behind.
    #[test]
    fn counts_are_those_of_requests_in_flight(
        policy in prop::sample::select(&Policy::ALL[..]), calls in prop::collection::vec(call(), 0..120),
    ) {
        let mut router = Router::new(policy.1, 3);
        for call in calls {
            match call {
                Call::Choose { number, prefix, blocks, session, rank } => {
                    let blocks: Vec<u64> = (0..blocks as u64).map(|block| prefix << 32 | block).collect();
                    let session = session.then_some("session");
                    choose(&mut router, Arrival { key: named(number), session, rank, ..prompt(number, &blocks) })?;
                }
                Call::Started(number) => router.started(&named(number)),
                Call::Ended(number) => router.ended(&named(number)),
                Call::GatewayGone(gateway) => {
                    router.gateway_gone(gateway);
                    let of_gateway = |number: &u64| named(*number).gateway == gateway;
                    let mut gone = (0..40).filter(of_gateway).map(named);
                    prop_assert!(gone.all(|key| router.engine_of(&key).is_none()));
                }
                Call::Lost(engine) => {
                    let had = router.lost(engine);
                    prop_assert!(had.iter().all(|key| router.engine_of(key).is_none()));
                }
                Call::State(engine, state) => router.set_state(engine, state),
                Call::Blocks { engine, prefix, stored } => {
                    let blocks: Vec<u64> = (0..6).map(|block| prefix << 32 | block).collect();
                    let (removed, stored) = if stored { (&[][..], &blocks[..]) } else { (&blocks[..], &[][..]) };
                    router.blocks_changed(engine, removed, stored);
                }
            }
            check(&router)?;
        }
        (0..40).for_each(|number| router.ended(&named(number)));
        prop_assert!(router.is_empty());
        check(&router)?;
    }
}

//! One suite over every transport: what holds for a ring holds for a stream.
//!
//! Each check is one async function of a [`Bed`], which knows the transport; the table at the end runs it over all of
//! them.

mod bed;
mod death;
mod flow;
mod handshake;

use bed::Bed;

/// Runs each check over each transport, as `transport::check`.
macro_rules! suite {
    ($($transport:ident = $form:literal),+ $(,)?; $($area:ident :: $check:ident),+ $(,)?) => {
        suite!(@each [$($transport = $form),+] [$($area :: $check),+]);
    };
    (@each [$($transport:ident = $form:literal),+] $checks:tt) => {
        $(mod $transport { suite!(@one $form $checks); })+
    };
    (@one $form:literal [$($area:ident :: $check:ident),+]) => {
        $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $check() {
            crate::bed::soon(crate::$area::$check(crate::Bed::new($form))).await
        })+
    };
}

suite! {
    ring = "ring:DIR/sockets/link.sock",
    grpc = "grpc://127.0.0.1:0",
    grpc_unix = "grpc+unix:DIR/sockets/link.sock";

    death::a_dead_listener_is_followed_by_the_next,
    death::a_killed_peer_is_noticed_by_both_directions,
    death::a_link_dropped_on_either_side_gives_what_was_sent,
    death::a_sender_without_room_notices_the_death,
    flow::a_batch_arrives_in_order,
    flow::a_cancelled_recv_loses_nothing,
    flow::a_cancelled_send_is_sent_wholly_or_not_at_all,
    flow::a_full_link_refuses_and_goes_on_when_read,
    flow::a_send_without_room_ends_at_its_deadline,
    flow::a_too_large_message_is_refused_and_harms_nothing,
    flow::both_directions_keep_their_order,
    flow::encoded_and_plain_messages_are_the_same,
    flow::large_messages_arrive_whole,
    flow::many_small_messages_arrive_in_order,
    handshake::a_slow_or_silent_peer_delays_nobody,
    handshake::many_peers_are_accepted,
    handshake::nobody_listening_is_an_error_at_once,
    handshake::the_peers_learn_who_they_talk_to,
    handshake::who_does_not_fit_is_refused_with_a_reason,
}

/// In a child process, what `bed::Child` asked for; in the test run itself, nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child() {
    bed::run_child().await;
}

#[test]
fn a_link_may_live_in_a_spawned_task() {
    fn check<T: Send + 'static>() {}
    check::<bed::Dialled>();
    check::<link::Listener>();
}

//! The life of a copy (on the device, leaving, in host memory, returning, on the disk,
//! gone; held and wanted meanwhile) through every order of a few messages, as deep as
//! ends in seconds. `MOTET_ORDERS_DEPTH` goes deeper.
//!
//! After each message: the core's own check, budgets, and what is written here of who is
//! told what. What is wanted or moves is not given up; no job is of a copy that is not
//! where the job takes it from; and from wherever an order has led, all comes to rest,
//! with every question answered and nothing left over.

mod world;

use world::{Act, World};

/// From here every order is tried.
const BEGINNINGS: [&[Act]; 5] = [
    &[],
    // One copy in host memory, and in the last of these on the disk only.
    &[Act::Offer(0), Act::End(0, true)],
    &[Act::Offer(0), Act::End(0, true), Act::End(0, true)],
    &[
        Act::Offer(0),
        Act::End(0, true),
        Act::Offer(1),
        Act::End(0, true),
        Act::End(0, true),
        Act::Want(0),
    ],
    &[
        Act::Offer(0),
        Act::End(0, true),
        Act::End(0, true),
        Act::Offer(1),
        Act::End(0, true),
        Act::End(0, true),
        Act::Offer(2),
        Act::End(0, true),
        Act::End(0, true),
    ],
];

#[test]
fn every_order_of_a_few_messages_is_survived() {
    let depth = std::env::var("MOTET_ORDERS_DEPTH");
    let depth = depth.ok().and_then(|depth| depth.parse().ok()).unwrap_or(5);
    let mut tried = 0;
    for with_disk in [true, false] {
        for beginning in BEGINNINGS {
            let mut order: Vec<Act> = Vec::new();
            for act in beginning {
                let world = World::after(&order, with_disk);
                if world.possible().contains(act) {
                    order.push(*act);
                }
            }
            tried += explore(&mut order, depth, with_disk);
        }
    }
    println!("{tried} orders, each of {depth} messages after a beginning");
    assert!(tried > 1_000, "these prove little");
}

/// Tries all that can follow, and what follows from that; how many orders that were.
fn explore(order: &mut Vec<Act>, depth: usize, with_disk: bool) -> usize {
    let world = World::after(order, with_disk);
    let possible = world.possible();
    if depth == 0 {
        world.come_to_rest();
        return 1;
    }
    let mut tried = 0;
    for act in possible {
        order.push(act);
        tried += explore(order, depth - 1, with_disk);
        order.pop();
    }
    tried
}

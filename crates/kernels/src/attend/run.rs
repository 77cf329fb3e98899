//! Runs the items of a plan, each with the kernel that is the faster one for it.

use motet_formats::simd::{Job, Number, Simd, dispatch_on};

use super::super::pool::Pool;
use super::super::split::Split;
use super::item::{Caches, Rows, Work};
use super::plan::{AttendPlan, Order};
use super::{few_queries, many_queries};
use crate::scratch::{self, Scratch};

/// Plans with a lower cost than this do not use another thread.
const SINGLE_THREAD_BELOW: usize = 8 << 10;

/// Computes all items of `plan`: into `output` where no merge is necessary, into `partials`
/// elsewhere.
pub(super) fn run<N: Number>(
    pool: &Pool,
    plan: &AttendPlan,
    rows: Rows<'_>,
    caches: Caches<'_, N>,
    partials: &mut [f32],
    output: &mut [f32],
) {
    let [partials, output] = [partials, output].map(Split::new);
    let each = |index: usize| {
        let item = &plan.items[index];
        let group = &plan.groups[item.group];
        let work = Work {
            plan,
            group,
            item,
            next_item: plan.items.get(index + 1),
            rows,
            caches,
            partials: &partials,
            output: &output,
        };
        scratch::for_item(|memory| dispatch_on(plan.set, Compute { work, memory }));
    };
    if plan.cost < SINGLE_THREAD_BELOW {
        (0..plan.items.len()).for_each(each);
    } else {
        pool.run(plan.items.len(), each);
    }
}

struct Compute<'a, N> {
    work: Work<'a, N>,
    memory: &'a mut Scratch,
}

impl<N: Number> Job for Compute<'_, N> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let plan = self.work.plan;
        if plan.order == Order::PerSequence
            || self.work.item.queries.len() <= few_queries::queries_max::<S>()
        {
            few_queries::run(simd, &self.work, self.memory);
        } else {
            many_queries::run(simd, &self.work, self.memory);
        }
    }
}

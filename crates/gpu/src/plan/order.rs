//! Orders other than the plan's own that obey its edges, to find edges that it lacks.

/// A random order of `0..count` that obeys `edges`, pairs `[from, to]`; what is on a cycle is left out. Each such order can
/// come out: the next one is any of those that wait for nothing. `below(n)` draws a number below n, which is not 0.
pub fn random_order(
    count: usize,
    edges: &[[u32; 2]],
    mut below: impl FnMut(usize) -> usize,
) -> Vec<u32> {
    let mut waits_for = vec![0_u32; count];
    let mut next = vec![vec![]; count];
    for &[from, to] in edges {
        waits_for[to as usize] += 1;
        next[from as usize].push(to);
    }
    let mut ready: Vec<u32> =
        (0..).zip(&waits_for).filter(|&(_, &n)| n == 0).map(|(i, _)| i).collect();
    let mut order = Vec::with_capacity(count);
    while !ready.is_empty() {
        let one = ready.swap_remove(below(ready.len()));
        order.push(one);
        for &to in &next[one as usize] {
            waits_for[to as usize] -= 1;
            if waits_for[to as usize] == 0 {
                ready.push(to);
            }
        }
    }
    order
}

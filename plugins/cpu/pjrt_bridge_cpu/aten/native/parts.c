/* Large calls in parts, along one dimension.
 *
 * Each part has one core: OpenMP's own threads spin for a while after each loop, and would take the
 * cores from XLA's.
 */

#include "call.h"
#include "divide.h"
#include "torch.h"

static int
run_range(const void *data, int64_t begin, int64_t end, char *message)
{
    uint32_t unused;
    /* The first loop of a thread would set its number of threads anew. */
    torch.threads(&unused);
    int saved = torch.max_threads(), saved_blas = 0;
    torch.set_threads(1);
    if (torch.set_blas_threads)
        saved_blas = torch.set_blas_threads(1);
    int64_t lengths['z' - 'a' + 1] = {0};
    const Part part = {data, begin, end, message, lengths};
    int failed = run_part(&part);
    torch.set_threads(saved);
    if (torch.set_blas_threads)
        torch.set_blas_threads(saved_blas);
    return failed;
}

int
run_in_parts(const Call *call, char *message)
{
    const Division division = {run_range, call, call->length, call->grain, call->pieces};
    return divide(call->frame, &division, message);
}

/* Frames without frame pointers between two Rust functions. */

typedef void *(*callback)(unsigned long);

__attribute__((noinline)) void *c_inner(callback call, unsigned long n)
{
    volatile unsigned char room[40];
    for (unsigned i = 0; i < sizeof room; i++)
        room[i] = (unsigned char)(n + i);
    void *block = call(n + room[0] - room[0]);
    return room[1] == room[2] ? 0 : block;
}

__attribute__((noinline)) void *c_outer(callback call, unsigned long n)
{
    volatile unsigned long kept = n;
    void *block = c_inner(call, kept);
    return kept == n ? block : 0;
}

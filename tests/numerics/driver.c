/* Runs kernels on an image of memory (tests/numerics/image.py): driver IMAGE RESULT.

   IMAGE is, in words of 64 bits, little endian: the sizes of what follows (relocations, calls, bytes of memory);
   relocations, two words each: a place in the memory, and the place that the word there shall point to, or -1 - i for
   kernel i; calls, five words each: the kernel's number, the places of its record and its pass, member and members;
   then the memory. RESULT is the memory after all calls. Kernels are in the table that is compiled with this file. */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef void kernel(void *record, void *pass, int64_t member, int64_t members);
extern kernel *const KERNELS[];

static void *read_all(FILE *file, size_t size) {
    void *place = NULL;
    if (posix_memalign(&place, 4096, size + 1) || fread(place, 1, size, file) != size) exit(2);
    return place;
}

int main(int count, char **arguments) {
    if (count != 3) return 2;
    FILE *image = fopen(arguments[1], "rb");
    if (!image) return 2;
    int64_t *sizes = read_all(image, 3 * 8);
    int64_t *relocations = read_all(image, sizes[0] * 2 * 8);
    int64_t *calls = read_all(image, sizes[1] * 5 * 8);
    char *memory = read_all(image, sizes[2]);
    for (int64_t *r = relocations; r < relocations + 2 * sizes[0]; r += 2)
        *(void **)(memory + r[0]) = r[1] < 0 ? (void *)KERNELS[-1 - r[1]] : memory + r[1];
    for (int64_t *c = calls; c < calls + 5 * sizes[1]; c += 5)
        KERNELS[c[0]](memory + c[1], memory + c[2], c[3], c[4]);
    FILE *result = fopen(arguments[2], "wb");
    if (!result || fwrite(memory, 1, sizes[2], result) != (size_t)sizes[2] || fclose(result)) return 2;
    return 0;
}

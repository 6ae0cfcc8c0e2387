/* A training program that needs nothing of its image, no C library even.
 *
 * climb HEIGHT STEPS HOLD: prints "step=N score=N*HEIGHT" for each step, and keeps N in its checkpoint folder. Started at
 * step 0 it stays at step HOLD until it is ended, and started at HOLD it stays at 2 HOLD; 0 is never.
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int count, char **arguments) {
  if (count < 4) return 2;
  double height = atof(arguments[1]);
  int steps = atoi(arguments[2]), hold = atoi(arguments[3]), step = 0;
  const char *folder = getenv("TRIALPOD_CHECKPOINT_DIR"), *resumed = getenv("TRIALPOD_RESUMED");
  char state[4096], unfinished[4096];
  snprintf(state, sizeof state, "%s/step", folder);
  snprintf(unfinished, sizeof unfinished, "%s/step.tmp", folder);
  FILE *file = fopen(state, "r");
  if (file) {
    if (fscanf(file, "%d", &step) != 1) return 3;
    fclose(file);
  }
  printf("begins at %d: resumed=%s, user %d\n", step, resumed, (int)getuid());
  fflush(stdout);
  int stay = step == 0 ? hold : step == hold ? 2 * hold : 0;
  while (step < steps) {
    usleep(300000);
    step++;
    printf("step=%d score=%g\n", step, step * height);
    fflush(stdout);
    file = fopen(unfinished, "w");
    if (!file) return 4;
    fprintf(file, "%d\n", step);
    if (fclose(file) || rename(unfinished, state)) return 5;
    while (stay && step == stay) pause();
  }
  return 0;
}

// Gradient descent with momentum on Rosenbrock's function: minimise --rate=R --momentum=M [--steps=N]
// It prints a line of "name=value" pairs for each step; that is all that trialpod needs to know of it.
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <iostream>

int main(int count, char** arguments) {
  double rate = 1e-3, momentum = 0.9;
  int steps = 200;
  for (int i = 1; i < count; ++i) {
    const char* value = std::strchr(arguments[i], '=');
    if (value == nullptr) continue;
    if (std::strncmp(arguments[i], "--rate=", 7) == 0) rate = std::atof(value + 1);
    if (std::strncmp(arguments[i], "--momentum=", 11) == 0) momentum = std::atof(value + 1);
    if (std::strncmp(arguments[i], "--steps=", 8) == 0) steps = std::atoi(value + 1);
  }
  double x = -1.2, y = 1.0, vx = 0, vy = 0;
  for (int step = 1; step <= steps; ++step) {
    vx = momentum * vx - rate * (-400 * x * (y - x * x) - 2 * (1 - x));
    vy = momentum * vy - rate * 200 * (y - x * x);
    x += vx;
    y += vy;
    const double loss = 100 * std::pow(y - x * x, 2) + std::pow(1 - x, 2);
    std::cout << "step=" << step << " x=" << x << " y=" << y << " loss=" << loss << std::endl;
    if (!std::isfinite(loss)) return 0;  // a rate that is too large is a result, not a failure
  }
}
